// The state of libtorch's optimizers under the names of the model's parameters.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <vector>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/checkpoint_files/manifest.h"

namespace gpipe::detail {

// The type's name is libtorch's, "Adam". A slot is called as its parameter and libtorch's name of it,
// "0.weight/exp_avg"; counts are scalars of type int64, "0.weight/step".
struct OptimizerState {
  std::string type;
  std::vector<OptimizerGroup> groups;
  NamedTensors slots;  // the optimizer's own tensors, not copies
};

// Of SGD, Adam, AdamW, RMSprop and Adagrad. Throws InvalidArgument for another optimizer, and for one with a parameter
// that the module does not have.
OptimizerState state_of(torch::optim::Optimizer& optimizer, const torch::nn::Module& module);

// Checks that the optimizer is of the same type, with the same parameters in the same groups, and that the slots are
// those that it needs; throws CheckpointError, which speaks of `path`, or InvalidArgument as above. Nothing has changed
// then. What is returned gives the optimizer the options and the slots, which are its own from then on.
std::function<void()> prepare_state(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                                    const OptimizerState& state, const std::string& path);

}  // namespace gpipe::detail
