// Optimizer slots: the tensors that libtorch's optimizers keep for each parameter.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/version.h>

#include <string>
#include <utility>
#include <vector>

namespace gpipe::detail {

// The key of a parameter in Optimizer::state().
inline auto optimizer_state_key(const at::Tensor& parameter) {
#if TORCH_VERSION_MAJOR >= 2
  return static_cast<void*>(parameter.unsafeGetTensorImpl());
#else
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
#endif
}

using StateTensors = std::vector<std::pair<const char*, at::Tensor*>>;

// What the state of a parameter keeps, with libtorch's names; those that it does without are undefined. Of SGD, Adam,
// AdamW, RMSprop and Adagrad; throws InvalidArgument for a state of another kind.
StateTensors tensors_of_state(torch::optim::OptimizerParamState& state);

struct OptimizerSlot {
  at::Tensor parameter;
  std::string name;  // as libtorch's, "exp_avg"
  at::Tensor state;
};

// Of SGD, Adam, AdamW, RMSprop and Adagrad, in the order of the parameters; none for parameters that have not been
// updated yet. Throws InvalidArgument for an optimizer of another kind that has a state.
std::vector<OptimizerSlot> optimizer_slots(torch::optim::Optimizer& optimizer);

}  // namespace gpipe::detail
