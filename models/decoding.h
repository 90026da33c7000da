// What the decoders have in common: layers of a trained model found by name, and evaluation for the time of a call.
#pragma once

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "gpipe/error.h"

namespace gpipe::models {

// The child of that name and type. Throws InvalidArgument, naming the function that makes such models.
template <typename Module>
std::shared_ptr<Module> find_layer(const torch::nn::Module& model, const std::string& name, const char* maker) {
  const auto children = model.named_children();
  const auto* child = children.find(name);
  auto found = child == nullptr ? nullptr : std::dynamic_pointer_cast<Module>(*child);
  if (found != nullptr) return found;
  throw InvalidArgument(fmt::format("the model has no layer \"{}\" of the right type; make it with {}", name, maker));
}

// prefix0, prefix1 and so on, as many as there are.
template <typename Module>
std::vector<std::shared_ptr<Module>> find_layers(const torch::nn::Module& model, const std::string& prefix) {
  std::vector<std::shared_ptr<Module>> layers;
  const auto children = model.named_children();
  while (const auto* child = children.find(fmt::format("{}{}", prefix, layers.size()))) {
    layers.push_back(std::dynamic_pointer_cast<Module>(*child));
    if (layers.back() == nullptr) {
      throw InvalidArgument(fmt::format("layer \"{}{}\" is of another type", prefix, layers.size() - 1));
    }
  }
  return layers;
}

// While it lives, there is no gradient, and modules that were added are in evaluation mode.
class EvaluationScope {
 public:
  EvaluationScope() = default;
  ~EvaluationScope() {
    for (torch::nn::Module* module : in_training_) module->train();
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

  // A module in training has all its parts in training.
  void add(torch::nn::Module& module) {
    if (!module.is_training()) return;
    module.eval();
    in_training_.push_back(&module);
  }

 private:
  const at::NoGradGuard no_grad_;
  std::vector<torch::nn::Module*> in_training_;
};

}  // namespace gpipe::models
