// LossCheck: whether the loss of a mini-batch is what its micro-batches add up to.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/execute/step/calls.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/recording/recording.h"

namespace gpipe::detail {

// Note [Losses of parts]
// ~~~~~~~~~~~~~~~~~~~~~~
// A loss that is a mean over anything else than rows, tokens for example, is another one for the whole mini-batch than
// put together from micro-batches, in which there are more tokens here and fewer there. Every number of stages trains
// the same wrong thing then. Both are computed again, in double precision, from the outputs of one step: what is left
// between them is beyond rounding if the loss is not the sum of its parts.
//
// `keep` is called by the last stage's worker during the step, `compare` by the caller behind it.
class LossCheck {
 public:
  // REQUIRES: `loss` and `targets` outlive it.
  LossCheck(const UserLoss& loss, LossReduction reduction, const std::vector<MicroBatch>& targets)
      : loss_(loss), reduction_(reduction), targets_(targets), outputs_(targets.size()) {}

  void keep(int micro_batch, const Tensors& outputs);
  // Nothing if it cannot be told: another rank has the outputs, they have no rows, or the loss takes no whole batch.
  std::optional<LossRecord> compare() const;

 private:
  // Of some rows: the mean is the sum by the weight.
  struct Value {
    double sum = 0;
    double weight = 1;  // of a sum: 1
    bool is_mean = true;
    at::ScalarType type = at::kFloat;
  };
  Value evaluate(const Tensors& outputs, const Tensors& targets, std::int64_t num_rows) const;
  std::optional<LossRecord> compare_in(bool in_double) const;

  const UserLoss& loss_;
  const LossReduction reduction_;
  const std::vector<MicroBatch>& targets_;
  std::vector<Tensors> outputs_;  // by micro-batch
};

}  // namespace gpipe::detail
