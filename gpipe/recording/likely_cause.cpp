#include "gpipe/recording/likely_cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace gpipe::detail {
namespace {

// Beyond what rounding does to a loss of that type, relative to it. One that is double may be made of floats.
double rounding_of(const std::string& type) {
  if (type == "Double") return 1e-6;
  return type == "Float" ? 1e-4 : 5e-2;
}

bool is_periodic(const std::vector<ProbeCall>& calls) {
  for (std::size_t period = 1; period <= calls.size() / 2; ++period) {
    bool repeats = true;
    for (std::size_t call = period; call < calls.size(); ++call) {
      repeats = repeats && calls[call].hash == calls[call - period].hash;
    }
    if (repeats) return true;
  }
  return false;
}

bool is_monotone(const std::vector<ProbeCall>& calls) {
  const auto ascends = [](const ProbeCall& a, const ProbeCall& b) { return a.sum < b.sum; };
  const auto descends = [](const ProbeCall& a, const ProbeCall& b) { return a.sum > b.sum; };
  return std::is_sorted(calls.begin(), calls.end(), ascends) || std::is_sorted(calls.begin(), calls.end(), descends);
}

// Whether far more has changed in the pause than between any two calls.
bool jumps_in_pause(const std::vector<ProbeCall>& calls) {
  constexpr double kFar = 5;
  const std::size_t half = calls.size() / 2;
  double largest = 0;
  for (std::size_t call = 1; call < calls.size(); ++call) {
    if (call != half) largest = std::max(largest, std::abs(calls[call].sum - calls[call - 1].sum));
  }
  return std::abs(calls[half].sum - calls[half - 1].sum) > kFar * largest;
}

bool has_suffix(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

bool is_batch_statistic(const std::string& name) {
  return has_suffix(name, "running_mean") || has_suffix(name, "running_var") || has_suffix(name, "num_batches_tracked");
}

std::string tensor_name(const RecordedDifference& difference, const RecordedPipeline& pipeline) {
  const TensorRecord& other = difference.other;
  switch (difference.kind) {
    case RecordKind::kEntered:
      return other.layer == 0
                 ? "the input of the model"
                 : fmt::format("what {} returned, on its way to {}", pipeline.describe_layer(other.layer - 1),
                               pipeline.describe_layer(other.layer));
    case RecordKind::kLeft:
    case RecordKind::kRecomputed:
      return fmt::format("what {} returned", pipeline.describe_layer(other.layer));
    case RecordKind::kArrived:
      return fmt::format("the gradient of what {} returned", pipeline.describe_layer(other.layer));
    case RecordKind::kLoss:
      return "the loss of the mini-batch";
    default:
      return fmt::format("{} {}", name(difference.kind), other.name);
  }
}

const char* action_of(RecordKind kind) {
  switch (kind) {
    case RecordKind::kRecomputed:
      return "recompute";
    case RecordKind::kArrived:
    case RecordKind::kGradient:
      return "backward";
    case RecordKind::kWeight:
      return "update";
    default:
      return "forward";
  }
}

// The layer that made it; -1: none.
int made_by(const RecordedDifference& difference) {
  const int layer = difference.other.layer;
  switch (difference.kind) {
    case RecordKind::kEntered:
      return layer - 1;
    case RecordKind::kArrived:
      return layer + 1;  // whose backward gave it
    case RecordKind::kLoss:
      return -1;
    default:
      return layer;
  }
}

LikelyCause cause_without_probe(const RecordedDifference& difference, const SeenIn& seen) {
  switch (difference.kind) {
    case RecordKind::kEntered:
      return difference.other.layer == 0 ? LikelyCause::kUnseededData : LikelyCause::kRace;
    case RecordKind::kWeight:
      return difference.other.step == 0 ? LikelyCause::kUnseededWeights : LikelyCause::kOptimizer;
    case RecordKind::kBuffer:
      return is_batch_statistic(difference.other.name) ? LikelyCause::kBatchStatistics : LikelyCause::kHiddenState;
    case RecordKind::kArrived:
      return LikelyCause::kBackward;
    case RecordKind::kGradient:
    case RecordKind::kLoss:
      return LikelyCause::kOrderOfAdditions;
    default:
      return seen.is_repeat ? LikelyCause::kUnknown : LikelyCause::kRace;
  }
}

// What a replica has in common with others: what layers return, and gradients of inputs, are of its own rows.
RecordedPipeline of_all_rows(RecordedPipeline pipeline) {
  const auto is_of_own_rows = [](const TensorRecord& record) {
    const bool is_of_input = record.kind == RecordKind::kGradient && record.name.find('.') == std::string::npos;
    return record.micro_batch >= 0 || is_of_input;
  };
  for (Recording& rank : pipeline.ranks) {
    rank.tensors.erase(std::remove_if(rank.tensors.begin(), rank.tensors.end(), is_of_own_rows), rank.tensors.end());
  }
  return pipeline;
}

VerifyFinding begin_finding(const RecordedPipeline& pipeline, const std::string& run) {
  VerifyFinding finding;
  finding.run = run;
  finding.pipeline = pipeline.pipeline;
  return finding;
}

bool is_far(const LossRecord& loss) {
  if (std::isnan(loss.of_parts) != std::isnan(loss.of_whole)) return true;
  const double scale = std::max(std::abs(loss.of_parts), std::abs(loss.of_whole));
  return std::abs(loss.of_parts - loss.of_whole) > rounding_of(loss.type) * scale;
}

std::optional<VerifyFinding> find_wrong_loss(const RecordedPipeline& pipeline, const std::string& run) {
  for (const Recording& rank : pipeline.ranks) {
    for (const LossRecord& loss : rank.losses) {
      if (!is_far(loss)) continue;
      VerifyFinding finding = begin_finding(pipeline, run);
      finding.cause = LikelyCause::kLossIsNoMean;
      finding.step = loss.step;
      finding.tensor = "the loss of the mini-batch";
      finding.layer = pipeline.describe_layer(pipeline.num_layers());
      finding.action = "forward";
      finding.detail = fmt::format(
          "put together from its micro-batches it is {:.9g}, of all rows at once {:.9g} (both computed as "
          "{}): the trained gradient is that of the former, for every number of stages",
          loss.of_parts, loss.of_whole, loss.type);
      return finding;
    }
  }
  return std::nullopt;
}

}  // namespace

LikelyCause cause_of(const Probe& probe) {
  const std::vector<ProbeCall>& calls = probe.calls;
  if (probe.has_own_generator) return LikelyCause::kOwnGenerator;
  if (!probe.problem.empty() || calls.size() < 4) return LikelyCause::kUnknown;
  const bool is_constant =
      std::all_of(calls.begin(), calls.end(), [&](const ProbeCall& call) { return call.hash == calls.front().hash; });
  if (is_constant) return LikelyCause::kRace;
  if (is_periodic(calls)) return LikelyCause::kHiddenState;
  if (is_monotone(calls)) return jumps_in_pause(calls) ? LikelyCause::kClock : LikelyCause::kHiddenState;
  return LikelyCause::kOwnGenerator;
}

std::optional<int> layer_to_probe(const RecordedDifference& difference) {
  if (difference.kind != RecordKind::kLeft && difference.kind != RecordKind::kRecomputed) return std::nullopt;
  return difference.other.layer;
}

bool needs_arrivals(const RecordedDifference& difference) { return difference.kind == RecordKind::kGradient; }

VerifyFinding explain(const RecordedDifference& difference, const RecordedPipeline& pipeline, const SeenIn& seen) {
  VerifyFinding finding = begin_finding(pipeline, seen.run);
  finding.cause = cause_without_probe(difference, seen);
  const int layer = made_by(difference);
  const bool is_of_layer = difference.kind == RecordKind::kLeft || difference.kind == RecordKind::kRecomputed;
  if (is_of_layer && seen.probe != nullptr) {
    const LikelyCause probed = cause_of(*seen.probe);
    // By itself it always does the same: then in the reference's settings, too, and what differs comes from elsewhere.
    if (probed != LikelyCause::kUnknown && !(probed == LikelyCause::kRace && seen.is_repeat)) finding.cause = probed;
    if (!seen.probe->problem.empty()) finding.detail = "it could not be run by itself: " + seen.probe->problem;
  }
  finding.step = difference.other.step;
  finding.tensor = tensor_name(difference, pipeline);
  if (layer >= 0) finding.layer = pipeline.describe_layer(layer);
  finding.stage = difference.other.stage;
  finding.micro_batch = difference.other.micro_batch;
  finding.action = action_of(difference.kind);
  if (difference.is_missing) finding.detail = "it is missing in this run";
  return finding;
}

std::optional<VerifyFinding> explain_copies(const RecordedPipeline& first, const RecordedPipeline& other,
                                            const std::string& run) {
  const std::optional<RecordedDifference> found = first_difference(of_all_rows(first), of_all_rows(other));
  if (!found) return std::nullopt;
  VerifyFinding finding = explain(*found, other, {run, false, nullptr});
  if (found->kind == RecordKind::kGradient || found->kind == RecordKind::kLoss) finding.cause = LikelyCause::kRace;
  finding.detail = fmt::format("replica {} has other bytes than replica {}", other.copy, first.copy);
  return finding;
}

std::vector<VerifyFinding> findings_in(const RecordedRun& run, const std::string& name) {
  std::vector<VerifyFinding> findings;
  for (const RecordedPipeline& pipeline : run.pipelines) {
    if (pipeline.copy != run.copies(pipeline.pipeline).front()->copy) continue;
    std::set<std::pair<int, std::string>> seen;
    for (const Recording& rank : pipeline.ranks) {
      for (const StrayWeight& stray : rank.strays) {
        if (stray.layer >= pipeline.num_layers() || !seen.insert({stray.layer, stray.shape}).second) continue;
        VerifyFinding finding = begin_finding(pipeline, name);
        finding.cause = LikelyCause::kUnregisteredWeight;
        finding.layer = pipeline.describe_layer(stray.layer);
        finding.tensor = fmt::format("a weight of {} that {} uses", stray.shape, finding.layer);
        finding.action = "forward";
        findings.push_back(std::move(finding));
      }
    }
    if (auto wrong = find_wrong_loss(pipeline, name)) findings.push_back(*std::move(wrong));
  }
  return findings;
}

std::vector<std::string> notes_in(const RecordedRun& run) {
  std::vector<std::string> notes;
  for (const RecordedPipeline& pipeline : run.pipelines) {
    for (const Recording& rank : pipeline.ranks) {
      for (const StrayWeight& stray : rank.strays) {
        if (stray.layer < pipeline.num_layers()) continue;
        const std::string note = fmt::format(
            "the loss function uses a weight of {} that is no parameter of the pipeline: an optimizer over "
            "pipeline->parameters() does not update it",
            stray.shape);
        if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
      }
    }
  }
  return notes;
}

}  // namespace gpipe::detail
