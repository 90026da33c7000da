// WeighedLoss: the user's loss, called for each micro-batch, and what its values add up to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/execute/engine/engine.h"
#include "gpipe/execute/group/loss_parts.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/execute/values/step_result.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

using UserLoss = std::function<LossValue(const Tensors& outputs, const Tensors& targets)>;

// Runs the loss of each micro-batch, weighs it unless it has weights of its own, and puts the parts together. Confined
// to the last stage's worker during a step; the caller's after it.
class WeighedLoss {
 public:
  // What happens when a loss is not finite and the options ask for a check: it is thrown at once, or only remembered,
  // because other ranks are in the middle of the step.
  enum class NonFinite { kThrow, kRemember };

  // REQUIRES: `loss`, `targets` and `options` outlive it.
  WeighedLoss(const UserLoss& loss, const std::vector<MicroBatch>& targets, const MiniBatch& batch,
              const PipelineOptions& options, NonFinite non_finite);

  at::Tensor operator()(int micro_batch, const Tensors& outputs);

  // Whether it gave any, so far.
  bool has_weights() const { return has_weights_.value_or(false); }
  // What was remembered; empty: all were finite.
  const std::string& non_finite() const { return non_finite_; }
  // Of what the calls above have returned.
  LossParts parts(const std::vector<Tensors>& losses) const;

 private:
  // Where the outputs are.
  Tensors targets_on(int micro_batch, const Tensors& outputs) const;
  // The same names for every micro-batch; the first comes first.
  void check_names(int micro_batch, const std::map<std::string, at::Tensor>& metrics) const;
  // All micro-batches have a weight, or none has.
  void note_weight(int micro_batch, const std::optional<at::Tensor>& weight);
  at::Tensor weigh(int micro_batch, const at::Tensor& value) const;
  void check(int micro_batch, const at::Tensor& loss);

  const UserLoss& loss_;
  const std::vector<MicroBatch>& targets_;
  const std::int64_t first_sample_;  // of this replica
  const std::int64_t num_samples_;   // of all replicas
  const PipelineOptions& options_;
  const bool throws_;
  std::string non_finite_;
  std::optional<bool> has_weights_;                         // not known before the first call
  std::vector<double> weights_;                             // by micro-batch, if there are some
  std::vector<std::map<std::string, at::Tensor>> metrics_;  // by micro-batch
};

}  // namespace gpipe::detail
