#include "train/optimizer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "cli/text.h"
#include "gpipe/error.h"

namespace gpipe::train {
namespace {

// What the optimizers ask for when they are made; set_learning_rate gives the real one.
constexpr double kNoLearningRate = 1;

void check_range(const char* what, double value, double end) {
  if (value >= 0 && value < end) return;
  throw InvalidArgument(fmt::format("{} is {}; it must be at least 0 and below {}", what, value, end));
}

}  // namespace

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names = {"adamw", "adam", "sgd", "rmsprop"};
  return names;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Pipeline& pipeline, const OptimizerOptions& options) {
  check_range("the momentum", options.momentum, 1);
  check_range("beta2", options.beta2, 1);
  check_range("the weight decay", options.weight_decay, 1e6);
  const std::tuple<double, double> betas(0.9, options.beta2);
  if (options.name == "adamw") {
    return std::make_unique<StageOptimizers<torch::optim::AdamW>>(
        pipeline, torch::optim::AdamWOptions(kNoLearningRate).betas(betas).weight_decay(options.weight_decay));
  }
  if (options.name == "adam") {
    return std::make_unique<StageOptimizers<torch::optim::Adam>>(
        pipeline, torch::optim::AdamOptions(kNoLearningRate).betas(betas).weight_decay(options.weight_decay));
  }
  if (options.name == "sgd") {
    return std::make_unique<StageOptimizers<torch::optim::SGD>>(
        pipeline,
        torch::optim::SGDOptions(kNoLearningRate).momentum(options.momentum).weight_decay(options.weight_decay));
  }
  if (options.name == "rmsprop") {
    return std::make_unique<StageOptimizers<torch::optim::RMSprop>>(
        pipeline,
        torch::optim::RMSpropOptions(kNoLearningRate).momentum(options.momentum).weight_decay(options.weight_decay));
  }
  throw InvalidArgument(fmt::format("there is no optimizer \"{}\"; did you mean \"{}\"?", options.name,
                                    cli::nearest_name(options.name, optimizer_names())));
}

int num_slots(const OptimizerOptions& options) {
  const int of_momentum = options.momentum > 0 ? 1 : 0;
  if (options.name == "sgd") return of_momentum;
  if (options.name == "rmsprop") return 1 + of_momentum;
  return 2;
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double learning_rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(learning_rate);
}

}  // namespace gpipe::train
