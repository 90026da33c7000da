#include "gpipe/model/optimizer_slots.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

template <typename State>
StateTensors tensors_of_adam(State& state) {
  return {
      {"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}, {"max_exp_avg_sq", &state.max_exp_avg_sq()}};
}

}  // namespace

StateTensors tensors_of_state(torch::optim::OptimizerParamState& state) {
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) return tensors_of_adam(*adam);
  if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state)) return tensors_of_adam(*adamw);
  if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    return {{"momentum_buffer", &sgd->momentum_buffer()}};
  }
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&state)) {
    return {{"square_avg", &rmsprop->square_avg()},
            {"momentum_buffer", &rmsprop->momentum_buffer()},
            {"grad_avg", &rmsprop->grad_avg()}};
  }
  if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&state)) return {{"sum", &adagrad->sum()}};
  throw InvalidArgument("the optimizer is none of SGD, Adam, AdamW, RMSprop and Adagrad: its state is not known");
}

std::vector<OptimizerSlot> optimizer_slots(torch::optim::Optimizer& optimizer) {
  std::vector<OptimizerSlot> slots;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(optimizer_state_key(parameter));
      if (found == optimizer.state().end()) continue;
      for (const auto& [name, state] : tensors_of_state(*found->second)) {
        if (state->defined()) slots.push_back({parameter, name, *state});
      }
    }
  }
  return slots;
}

}  // namespace gpipe::detail
