// Optimizers by name, for the command line.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::train {

struct OptimizerOptions {
  std::string name = "adamw";  // see optimizer_names
  double momentum = 0.9;       // of sgd and rmsprop
  double weight_decay = 0;
  double beta2 = 0.999;  // of adam and adamw
};

const std::vector<std::string>& optimizer_names();

// One for each stage of the pipeline. Its learning rate is set before every step. Throws InvalidArgument for a name
// that is not there, and for values that the optimizer does not take.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Pipeline& pipeline, const OptimizerOptions& options);

// Tensors of state it keeps for each parameter.
int num_slots(const OptimizerOptions& options);

void set_learning_rate(torch::optim::Optimizer& optimizer, double learning_rate);

}  // namespace gpipe::train
