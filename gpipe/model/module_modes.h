// Module modes: notices when a module is switched between training and evaluation.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "gpipe/model/layer.h"

namespace gpipe::detail {

// What was learnt of layers from running them holds as long as their modes do. Thread-compatible.
class ModuleModes {
 public:
  explicit ModuleModes(const std::vector<ChainLayer>& layers) {
    for (const ChainLayer& layer : layers) {
      for (auto& module : layer.layer.module->modules(/*include_self=*/true)) modules_.push_back(std::move(module));
    }
  }

  // Since the last call.
  bool have_changed() {
    bool changed = modes_.size() != modules_.size();
    modes_.resize(modules_.size());
    for (std::size_t index = 0; index < modules_.size(); ++index) {
      changed |= modes_[index] != modules_[index]->is_training();
      modes_[index] = modules_[index]->is_training();
    }
    return changed;
  }

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> modes_;
};

}  // namespace gpipe::detail
