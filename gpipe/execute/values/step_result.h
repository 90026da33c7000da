// What a loss function gives a step, and what the step gives back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/report/timeline.h"

namespace gpipe {

// What a loss function returns: a scalar to go backward from and, if it likes, its weight and values to report by name.
//
// With a weight, the loss of the mini-batch is the sum of the scalars, over all micro-batches and all replicas, divided
// by the sum of the weights, and so are the gradients: see Note [Gradients of a weighted loss]. So a mean over anything
// else than samples is exact, such as that over the tokens that are not padding: the scalar is then a sum over them,
// and the weight their number. LossReduction has no say then. A weight is a constant, to which no gradient flows: one
// number that is finite and not negative. If the whole mini-batch weighs 0, the loss is 0 and no gradient is added. The
// function gives a weight for all micro-batches or for none. If a step with weights fails, all gradients are as before
// it.
struct LossValue {
  LossValue(at::Tensor value) : loss(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  LossValue(at::Tensor value, std::map<std::string, at::Tensor> reported)
      : loss(std::move(value)), metrics(std::move(reported)) {}
  // `weight` is a number, or a tensor of one element.
  template <typename Weight,
            typename = std::enable_if_t<std::is_arithmetic_v<Weight> || std::is_same_v<Weight, at::Tensor>>>
  LossValue(at::Tensor sum, Weight weight_of_sum, std::map<std::string, at::Tensor> reported = {})
      : loss(std::move(sum)), weight(as_tensor(std::move(weight_of_sum))), metrics(std::move(reported)) {}

  at::Tensor loss;
  std::optional<at::Tensor> weight;
  // Scalars are put together as losses are, see LossReduction; if there are weights, they are means by these, in which
  // a micro-batch of weight 0 does not count. Other tensors are put together row by row.
  std::map<std::string, at::Tensor> metrics;

 private:
  static at::Tensor as_tensor(at::Tensor weight) { return weight; }
  static at::Tensor as_tensor(double weight);
};

class NonFiniteLossError : public Error {
 public:
  using Error::Error;
};

// Bytes of tensors that a stage has allocated or taken over: parameters, gradients, activations.
struct StageMemory {
  std::int64_t live_bytes = 0;  // at the end of the step
  std::int64_t peak_bytes = 0;  // the most during it
  // What the peak is made of.
  std::int64_t parameter_bytes = 0;  // with buffers; also of those that are not counted, see measure_memory
  std::int64_t gradient_bytes = 0;
  std::int64_t optimizer_bytes = 0;  // that were booked before the step
  std::int64_t input_bytes = 0;      // the most that was held, for a recompute, of what came from other stages
  // The rest: activations and whatever else the layers needed at the same time; with recompute, of one micro-batch.
  std::int64_t working_bytes() const {
    return peak_bytes - parameter_bytes - gradient_bytes - optimizer_bytes - input_bytes;
  }
};

struct StepResult {
  at::Tensor loss;                            // of the mini-batch, detached
  std::optional<double> weight;               // of the mini-batch; none if the loss function gave none
  std::map<std::string, at::Tensor> metrics;  // what the loss function reported, detached
  Timeline timeline;                          // measured
  std::vector<StageMemory> memory;            // by stage; empty unless PipelineOptions::measure_memory
};

}  // namespace gpipe
