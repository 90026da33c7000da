// Modules for the tests, written as TorchScript source: what would come out of Python's torch.jit.script.
#pragma once

#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/model/micro_batch.h"
#include "gpipe/torchscript/from_torchscript.h"
#include "tests/model/same_bits.h"

namespace gpipe::test {

// While it lives, modules run as they are written: the executor that optimizes computes other bits.
class PlainExecutor {
 public:
  PlainExecutor() : before_(torch::jit::getGraphExecutorOptimize()) { torch::jit::setGraphExecutorOptimize(false); }
  ~PlainExecutor() { torch::jit::setGraphExecutorOptimize(before_); }
  PlainExecutor(const PlainExecutor&) = delete;
  PlainExecutor& operator=(const PlainExecutor&) = delete;

 private:
  const bool before_;
};

// A module in training, with this source of its methods.
inline torch::jit::Module script_module(const std::string& source = "") {
  torch::jit::Module module("__torch__.Test");
  module.register_attribute("training", c10::BoolType::get(), true);
  if (!source.empty()) module.define(source);
  return module;
}

inline void add_parameter(torch::jit::Module& module, const std::string& name, at::Tensor values) {
  module.register_parameter(name, values.requires_grad_(), /*is_buffer=*/false);
}

inline torch::jit::Module script_linear(int inputs, int outputs) {
  torch::jit::Module module = script_module();
  const double bound = 1 / std::sqrt(inputs);
  add_parameter(module, "weight", torch::empty({outputs, inputs}).uniform_(-bound, bound));
  add_parameter(module, "bias", torch::empty({outputs}).uniform_(-bound, bound));
  module.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
  return module;
}

inline torch::jit::Module script_conv(int inputs, int outputs) {
  torch::jit::Module module = script_module();
  add_parameter(module, "weight", torch::randn({outputs, inputs, 3, 3}) / std::sqrt(9.0 * inputs));
  module.define(
      "def forward(self, x):\n"
      "  return torch.conv2d(x, self.weight, None, [1, 1], [1, 1])\n");
  return module;
}

inline torch::jit::Module script_batch_norm(int channels) {
  torch::jit::Module module = script_module();
  add_parameter(module, "weight", torch::rand(channels) + 0.5);
  add_parameter(module, "bias", torch::randn(channels));
  module.register_buffer("running_mean", torch::zeros(channels));
  module.register_buffer("running_var", torch::ones(channels));
  module.register_buffer("num_batches_tracked", torch::zeros({}, torch::kLong));
  module.define(
      "def forward(self, x):\n"
      "  if self.training:\n"
      "    self.num_batches_tracked.add_(1)\n"
      "  return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, self.training, 0.1, "
      "1e-5, False)\n");
  return module;
}

// A module of its own with the same values.
inline torch::jit::Module copy_of(const torch::jit::Module& module) {
  std::stringstream file;
  module.save(file);
  return torch::jit::load(file);
}

inline void add_tensors(const c10::IValue& value, Tensors& tensors) {
  if (value.isNone()) {
    tensors.emplace_back();
  } else if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) add_tensors(element, tensors);
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) add_tensors(item.value(), tensors);
  } else {
    for (const auto& element : value.toListRef()) add_tensors(element, tensors);
  }
}

// A loss in which every element of every output has a weight of its own.
inline at::Tensor weighted_sum(const Tensors& outputs) {
  at::Tensor loss;
  double phase = 1;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.is_floating_point()) continue;
    const at::Tensor values = output.flatten();
    const at::Tensor part = (values * torch::cos(torch::arange(values.numel(), values.options()) * 0.37 * phase)).sum();
    loss = loss.defined() ? loss + part : part;
    phase += 1;
  }
  return loss;
}

inline std::map<std::string, at::Tensor> named_tensors(const torch::jit::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& parameter : module.named_parameters()) tensors[parameter.name] = parameter.value;
  for (const auto& buffer : module.named_buffers()) tensors[buffer.name] = buffer.value;
  return tensors;
}

// What a module was trained to by one forward and backward with this seed.
inline at::Tensor train_whole(torch::jit::Module& module, const std::vector<c10::IValue>& arguments, int seed) {
  const PlainExecutor plain;
  torch::manual_seed(seed);
  Tensors outputs;
  add_tensors(module.forward(arguments), outputs);
  at::Tensor loss = weighted_sum(outputs);
  loss.backward();
  return loss.detach();
}

// The same by the layers of a chain, one after the other, with the draws of the whole.
inline at::Tensor train_layers(const LayerChain& chain, Tensors tensors, int seed) {
  torch::manual_seed(seed);
  for (int layer = 0; layer < chain.size(); ++layer) {
    tensors = chain.build(layer, /*seed=*/0).forward(std::move(tensors));
  }
  at::Tensor loss = weighted_sum(tensors);
  loss.backward();
  return loss.detach();
}

// Parameters, their gradients and buffers.
inline void expect_same_module(const torch::jit::Module& got, const torch::jit::Module& expected) {
  const auto values = named_tensors(got);
  for (const auto& [name, tensor] : named_tensors(expected)) {
    ASSERT_EQ(values.count(name), 1U) << name;
    expect_same_bits(values.at(name), tensor, name);
    if (tensor.is_leaf()) expect_same_bits(values.at(name).grad(), tensor.grad(), "gradient of " + name);
  }
}

}  // namespace gpipe::test
