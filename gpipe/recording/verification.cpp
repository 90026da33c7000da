#include "gpipe/recording/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gpipe/text/json.h"
#include "gpipe/text/layout.h"
#include "gpipe/text/printable.h"

namespace gpipe {
namespace {

using detail::Align;
using detail::Column;
using detail::printable;
using Json = nlohmann::ordered_json;

struct Cause {
  const char* name;
  const char* description;
  const char* remedy;
};
constexpr Cause kCauses[kNumLikelyCauses] = {
    {"unseeded-data", "the data that the program trains on differ from run to run",
     "seed what makes or shuffles them: torch::manual_seed before torch::randn, a seed for the sampler"},
    {"unseeded-weights", "the initial weights differ from run to run",
     "add layers to a LayerChain by chain.add<Holder>(name, ...), which seeds them, or call torch::manual_seed before "
     "they are built"},
    {"own-generator", "the layer draws from a random generator of its own",
     "draw with libtorch's functions and without a generator: then the numbers are a function of seed, step, layer and "
     "micro-batch; gpipe::LayerScope::stream() is the generator for code that needs one"},
    {"hidden-state", "the layer keeps something between its calls that is neither a parameter nor a buffer",
     "keep it in a buffer (register_buffer), or make it a function of gpipe::LayerScope::current(), which knows step "
     "and micro-batch; a forward that is run again in the backward must do the same, see gpipe::is_recomputing()"},
    {"clock", "the layer reads the clock", "take the number of the step from gpipe::LayerScope::current() instead"},
    {"race", "threads touch the same memory at the same time, or a tensor changes on its way",
     "give each micro-batch memory of its own: return new tensors, use gpipe::stash and gpipe::pop for what jumps over "
     "layers, and share nothing else between layers"},
    {"batch-statistics", "a batch norm takes its statistics from one replica's share of the batch",
     "use gpipe::nn::DeferredBatchNorm1d, 2d or 3d, or gpipe::convert_batch_norm: its statistics are over all "
     "replicas"},
    {"loss-is-no-mean", "the loss of the mini-batch is not what its micro-batches add up to",
     "return gpipe::LossValue(sum, weight), where the weight counts what the mean is over, tokens for example; or use "
     "LossReduction::kSum for a loss that is a sum"},
    {"unregistered-weight", "a layer uses a tensor that requires a gradient and is none of its parameters",
     "register it with register_parameter: now no optimizer updates it, no checkpoint keeps it, and the gradients of "
     "several stages race for it"},
    {"order-of-additions", "the same gradients were added up in another order",
     "use a schedule that accumulates in the order of the micro-batches (gpipe check says whether), and tie weights "
     "with LayerChain::tie instead of sharing a module"},
    {"optimizer", "the gradients are the same, but the weights behind the update are not",
     "look for a generator, a clock or a state in the optimizer, and for what the program does to the weights between "
     "two steps"},
    {"backward", "the gradient of the layer is another, though its forward is the same",
     "look at custom autograd functions for state, for generators and for atomic additions in another order"},
    {"unknown", "nothing that is known to do this", "compare the runs with --recompute never and --stages 2 alone"},
};

const Cause& entry(LikelyCause cause) { return kCauses[static_cast<std::size_t>(cause)]; }

const char* name_of(VerifyOutcome outcome) {
  switch (outcome) {
    case VerifyOutcome::kSame:
      return "same";
    case VerifyOutcome::kDiffers:
      return "DIFFERS";
    case VerifyOutcome::kNotPossible:
      return "not possible";
    case VerifyOutcome::kFailed:
      return "FAILED";
  }
  return "";
}

std::string count_text(const VerifiedRun& run, std::int64_t count) {
  const bool was_compared = run.outcome == VerifyOutcome::kSame || run.outcome == VerifyOutcome::kDiffers;
  return was_compared ? std::to_string(count) : "";
}

std::string table_of(const std::vector<VerifiedRun>& runs) {
  std::vector<std::vector<std::string>> rows;
  for (const VerifiedRun& run : runs) {
    rows.push_back({printable(run.name), name_of(run.outcome), count_text(run, run.num_steps),
                    count_text(run, run.num_losses), count_text(run, run.num_crossings),
                    count_text(run, run.num_gradients), count_text(run, run.num_buffers),
                    count_text(run, run.num_weights)});
  }
  return detail::to_table(
      {Column{"run", Align::kLeft}, Column{"bytes", Align::kLeft}, Column{"steps"}, Column{"losses"},
       Column{"crossings"}, Column{"gradients"}, Column{"buffers"}, Column{"weights"}},
      rows);
}

std::string place_of(const VerifyFinding& finding) {
  std::string text = fmt::format("step {}", finding.step);
  if (finding.pipeline > 0) text = fmt::format("pipeline {}, {}", finding.pipeline, text);
  if (finding.micro_batch >= 0) text += fmt::format(", micro-batch {}", finding.micro_batch);
  if (!finding.action.empty()) text += fmt::format(", {}", finding.action);
  if (finding.stage >= 0) text += fmt::format(", stage {}", finding.stage);
  return text;
}

std::string text_of(const VerifyFinding& finding) {
  std::string text = fmt::format("{}\n  where: {}\n", finding.tensor, place_of(finding));
  if (!finding.layer.empty()) text += fmt::format("  made by: {}\n", finding.layer);
  if (!finding.run.empty()) text += fmt::format("  seen in: {}\n", finding.run);
  if (!finding.detail.empty()) text += fmt::format("  {}\n", finding.detail);
  text += fmt::format("  likely cause: {} ({})\n  what to do: {}\n", description(finding.cause), name(finding.cause),
                      remedy(finding.cause));
  return printable(text);
}

Json to_object(const VerifiedRun& run) {
  return {{"name", run.name},
          {"outcome", name_of(run.outcome)},
          {"note", run.note},
          {"num_steps", run.num_steps},
          {"num_losses", run.num_losses},
          {"num_crossings", run.num_crossings},
          {"num_gradients", run.num_gradients},
          {"num_buffers", run.num_buffers},
          {"num_weights", run.num_weights}};
}

Json to_object(const VerifyFinding& finding) {
  return {{"cause", name(finding.cause)},    {"description", description(finding.cause)},
          {"remedy", remedy(finding.cause)}, {"run", finding.run},
          {"pipeline", finding.pipeline},    {"step", finding.step},
          {"tensor", finding.tensor},        {"layer", finding.layer},
          {"stage", finding.stage},          {"micro_batch", finding.micro_batch},
          {"action", finding.action},        {"detail", finding.detail}};
}

}  // namespace

const char* name(LikelyCause cause) { return entry(cause).name; }
const char* description(LikelyCause cause) { return entry(cause).description; }
const char* remedy(LikelyCause cause) { return entry(cause).remedy; }

bool Verification::is_verified() const {
  const auto is = [](VerifyOutcome outcome) {
    return [outcome](const VerifiedRun& run) { return run.outcome == outcome; };
  };
  return findings.empty() && std::any_of(runs.begin(), runs.end(), is(VerifyOutcome::kSame)) &&
         std::none_of(runs.begin(), runs.end(), is(VerifyOutcome::kFailed)) &&
         std::none_of(runs.begin(), runs.end(), is(VerifyOutcome::kDiffers));
}

std::string to_text(const Verification& verification) {
  std::string text = fmt::format("compared with {}:\n\n", printable(verification.reference));
  text += table_of(verification.runs) + "\n";
  for (const VerifiedRun& run : verification.runs) {
    if (!run.note.empty()) text += printable(fmt::format("{}: {}\n", run.name, run.note));
  }
  for (const std::string& note : verification.notes) text += printable(fmt::format("note: {}\n", note));
  if (verification.is_verified()) return text + "verified\n";
  for (const VerifyFinding& finding : verification.findings) text += text_of(finding) + "\n";
  return text + "not verified\n";
}

std::string to_json(const Verification& verification) {
  Json json;
  json["verified"] = verification.is_verified();
  json["reference"] = verification.reference;
  json["runs"] = Json::array();
  for (const VerifiedRun& run : verification.runs) json["runs"].push_back(to_object(run));
  json["findings"] = Json::array();
  for (const VerifyFinding& finding : verification.findings) json["findings"].push_back(to_object(finding));
  json["notes"] = verification.notes;
  return detail::indented_json(json);
}

}  // namespace gpipe
