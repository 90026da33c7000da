// The first difference between two recordings of one training: the one that the others follow from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpipe/recording/recorded_run.h"

namespace gpipe::detail {

// A record of the reference and what another run has in its place.
struct RecordedDifference {
  RecordKind kind = RecordKind::kWeight;
  TensorRecord reference;  // of a tensor that came to another stage: what the layer before it returned
  TensorRecord other;
  bool is_missing = false;  // the other run has nothing there
};

// What is compared.
enum class Compared {
  kEverything,
  kFirstForward,  // what layers return in the first step
};

// A training step happens in an order: the weights that the optimizer left, the inputs, what each layer returns, the
// loss, the gradients on their way back, those of the parameters, the buffers. Of all differences this is the first one
// in that order, which has none before it that it could follow from. Steps that only one of them has do not count.
std::optional<RecordedDifference> first_difference(const RecordedPipeline& reference, const RecordedPipeline& other,
                                                   Compared compared = Compared::kEverything);

// The same for runs that may differ by the order of additions: the first tensor of the whole first step whose norm is
// another by more than `tolerance`, relative to it.
std::optional<RecordedDifference> first_distant(const RecordedPipeline& reference, const RecordedPipeline& other,
                                                double tolerance);

// Whether the first step of both has the same inputs in every micro-batch of `other`.
bool have_same_inputs(const RecordedPipeline& reference, const RecordedPipeline& other);

// How many records of `other` had a counterpart.
struct ComparedCounts {
  std::int64_t crossings = 0;  // of layers and stages
  std::int64_t losses = 0;
  std::int64_t gradients = 0;
  std::int64_t buffers = 0;
  std::int64_t weights = 0;
};
ComparedCounts count_compared(const RecordedPipeline& reference, const RecordedPipeline& other);

}  // namespace gpipe::detail
