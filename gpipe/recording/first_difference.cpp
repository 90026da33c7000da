#include "gpipe/recording/first_difference.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace gpipe::detail {
namespace {

// Where a record stands in a training, whatever the stages.
struct Place {
  RecordKind kind = RecordKind::kWeight;
  std::int64_t step = 0;
  int layer = 0;
  int micro_batch = 0;
  std::string name;
};
bool operator<(const Place& a, const Place& b) {
  return std::tie(a.kind, a.step, a.layer, a.micro_batch, a.name) <
         std::tie(b.kind, b.step, b.layer, b.micro_batch, b.name);
}

Place place_of(const TensorRecord& record) {
  const bool has_name = !record.name.empty();
  return {record.kind, record.step, has_name ? 0 : record.layer, record.micro_batch, record.name};
}

using Records = std::map<Place, const TensorRecord*>;

Records records_of(const RecordedPipeline& pipeline) {
  Records records;
  for (const Recording& rank : pipeline.ranks) {
    for (const TensorRecord& record : rank.tensors) records.emplace(place_of(record), &record);
  }
  return records;
}

// What the reference has where `record` is, or should be the same as.
Place counterpart(const TensorRecord& record) {
  Place place = place_of(record);
  if (record.kind == RecordKind::kRecomputed) place.kind = RecordKind::kLeft;
  if (record.kind == RecordKind::kEntered && record.layer > 0) {
    place.kind = RecordKind::kLeft;
    --place.layer;
  }
  return place;
}

// What comes first in a step has the smaller key. A layer's recompute comes right behind its forward; gradients come
// from the last layer to the first.
std::tuple<std::int64_t, int, int, int, int> order_of(const TensorRecord& record) {
  constexpr int kForward = 1;
  constexpr int kBehindForward = 2;
  const auto kind = static_cast<int>(record.kind);
  switch (record.kind) {
    case RecordKind::kEntered:
      return {record.step, kForward, record.layer, 0, record.micro_batch};
    case RecordKind::kLeft:
      return {record.step, kForward, record.layer, 1, record.micro_batch};
    case RecordKind::kRecomputed:
      return {record.step, kForward, record.layer, 2, record.micro_batch};
    case RecordKind::kArrived:
      return {record.step, kBehindForward + kind, -record.layer, 0, record.micro_batch};
    case RecordKind::kWeight:
      return {record.step, 0, record.layer, 0, 0};
    default:
      return {record.step, kBehindForward + kind, record.layer, 0, 0};
  }
}

bool is_first_forward(const TensorRecord& record) {
  return record.step == 0 && (record.kind == RecordKind::kEntered || record.kind == RecordKind::kLeft);
}

// A step that not both have taken, and the weights behind the last one.
bool counts(const TensorRecord& record, std::int64_t num_steps) {
  return record.step < num_steps || (record.kind == RecordKind::kWeight && record.step == num_steps);
}

// Keeps the first of the differences that it is given.
class First {
 public:
  void offer(RecordedDifference difference) {
    if (found_ && order_of(found_->other) <= order_of(difference.other)) return;
    found_ = std::move(difference);
  }
  std::optional<RecordedDifference> take() { return std::move(found_); }

 private:
  std::optional<RecordedDifference> found_;
};

}  // namespace

std::optional<RecordedDifference> first_difference(const RecordedPipeline& reference, const RecordedPipeline& other,
                                                   Compared compared) {
  const std::int64_t num_steps = std::min(reference.num_steps(), other.num_steps());
  const Records expected = records_of(reference);
  First first;
  for (const Recording& rank : other.ranks) {
    for (const TensorRecord& record : rank.tensors) {
      if (!counts(record, num_steps)) continue;
      if (compared == Compared::kFirstForward && !is_first_forward(record)) continue;
      const auto found = expected.find(counterpart(record));
      if (found == expected.end() || found->second->hash == record.hash) continue;
      first.offer({record.kind, *found->second, record, false});
    }
  }
  if (compared == Compared::kEverything) {
    const Records got = records_of(other);
    for (const auto& [place, record] : expected) {
      const bool must_be_there = record->kind == RecordKind::kLoss || record->kind == RecordKind::kGradient;
      if (!must_be_there || !counts(*record, num_steps) || got.count(place) != 0) continue;
      first.offer({record->kind, *record, *record, true});
    }
  }
  return first.take();
}

std::optional<RecordedDifference> first_distant(const RecordedPipeline& reference, const RecordedPipeline& other,
                                                double tolerance) {
  // A gradient that is nothing but rounding is small among the others.
  constexpr double kOfLargest = 1e-3;
  const std::int64_t num_steps = std::min(reference.num_steps(), other.num_steps());
  const Records expected = records_of(reference);
  std::map<RecordKind, double> largest;
  for (const auto& [place, record] : expected) {
    double& of_kind = largest[place.kind];
    if (std::isfinite(record->norm)) of_kind = std::max(of_kind, record->norm);
  }
  First first;
  for (const Recording& rank : other.ranks) {
    for (const TensorRecord& record : rank.tensors) {
      const bool is_of_step = record.micro_batch < 0;
      const bool is_first = record.step == 0 || (record.step == 1 && record.kind == RecordKind::kWeight);
      if (!is_of_step || !is_first || !counts(record, num_steps)) continue;
      const auto found = expected.find(place_of(record));
      if (found == expected.end()) continue;
      const double norm = found->second->norm;
      if (norm == record.norm || (std::isnan(norm) && std::isnan(record.norm))) continue;
      const double scale = std::max({std::abs(norm), std::abs(record.norm), kOfLargest * largest[record.kind]});
      if (std::abs(norm - record.norm) <= tolerance * scale) continue;
      first.offer({record.kind, *found->second, record, false});
    }
  }
  return first.take();
}

bool have_same_inputs(const RecordedPipeline& reference, const RecordedPipeline& other) {
  const Records expected = records_of(reference);
  for (const Recording& rank : other.ranks) {
    for (const TensorRecord& record : rank.tensors) {
      if (record.kind != RecordKind::kEntered || record.step != 0 || record.layer != 0) continue;
      const auto found = expected.find(place_of(record));
      if (found == expected.end() || found->second->hash != record.hash) return false;
    }
  }
  return true;
}

ComparedCounts count_compared(const RecordedPipeline& reference, const RecordedPipeline& other) {
  const std::int64_t num_steps = std::min(reference.num_steps(), other.num_steps());
  const Records expected = records_of(reference);
  ComparedCounts result;
  for (const Recording& rank : other.ranks) {
    for (const TensorRecord& record : rank.tensors) {
      if (!counts(record, num_steps) || expected.count(counterpart(record)) == 0) continue;
      switch (record.kind) {
        case RecordKind::kLoss:
          ++result.losses;
          break;
        case RecordKind::kGradient:
          ++result.gradients;
          break;
        case RecordKind::kBuffer:
          ++result.buffers;
          break;
        case RecordKind::kWeight:
          ++result.weights;
          break;
        default:
          ++result.crossings;
      }
    }
  }
  return result;
}

}  // namespace gpipe::detail
