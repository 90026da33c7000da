// Script layer: a layer of a chain that was cut from a TorchScript module.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/model/micro_batch.h"
#include "gpipe/torchscript/layer_program.h"
#include "gpipe/torchscript/script_batch_norm.h"

namespace gpipe::detail {

// Its submodules stand at the paths of the original ones, as far as this layer uses them, and have the parameters and
// buffers that belong to it. train() and eval() of such a submodule is what the operations of the original read.
// Tensors that are neither parameters nor buffers are not registered; they follow the layer's inputs to other devices.
//
// Confined to the thread that runs it.
class ScriptLayer : public torch::nn::Module {
 public:
  // `training` has the modes of the original submodules by their paths.
  ScriptLayer(std::shared_ptr<const LayerProgram> program, const std::map<std::string, bool>& training);

  // What the layer before gives; the first layer takes the tensors of the mini-batch. Throws InvalidArgument with one
  // line that says what operation failed.
  Tensors forward(Tensors tensors);

 private:
  struct BoundSlot {
    c10::IValue value;                        // of a tensor
    const torch::nn::Module* mode = nullptr;  // whose is_training() is the value
    bool follows_inputs = false;              // to their device
  };

  torch::nn::Module& scope(const std::string& path);
  // The tensor that this layer has for the slot.
  at::Tensor own(const AttributeSlot& slot);
  void add_norm(const BatchNormSlots& slots);
  void bind(const AttributeSlot& slot);
  void set_modes(const std::map<std::string, bool>& training);

  // That of its weights; without any, that of the values.
  at::Device device_for(const std::vector<c10::IValue>& values) const;
  std::vector<c10::IValue> take(Tensors tensors);
  Tensors give(std::vector<c10::IValue> values) const;
  Tensors give_result(const c10::IValue& result) const;
  void run(std::vector<c10::IValue>& stack) const;

  const std::shared_ptr<const LayerProgram> program_;
  std::map<std::string, at::Tensor> own_;  // by the names of slots
  BatchNormScope::Norms norms_;            // that are deferred
  std::vector<BoundSlot> slots_;
};

}  // namespace gpipe::detail
