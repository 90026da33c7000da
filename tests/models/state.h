// A model's parameters and buffers by name, and the operations that a second implementation of it is written with.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

#include "gpipe/gpipe.h"

namespace gpipe::test {

// Small differences everywhere, so that no parameter, and no buffer, is at a value where it does nothing.
inline void shake(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(3);
  for (auto& parameter : model.parameters()) parameter.add_(at::randn_like(parameter) * 0.05);
  for (auto& item : model.named_buffers()) {
    if (item.value().is_floating_point()) item.value().add_(at::rand_like(item.value()) * 0.3);
  }
}

// Shares the tensors of the model.
class State {
 public:
  explicit State(const torch::nn::Module& model) {
    for (const auto& item : model.named_parameters()) tensors_[item.key()] = item.value();
    for (const auto& item : model.named_buffers()) tensors_[item.key()] = item.value();
  }

  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  // An undefined tensor if there is none.
  at::Tensor operator[](const std::string& name) const { return has(name) ? tensors_.at(name) : at::Tensor(); }

  at::Tensor conv(const at::Tensor& x, const std::string& name, at::IntArrayRef stride, at::IntArrayRef padding) const {
    EXPECT_TRUE(has(name + ".weight")) << name;
    return at::conv2d(x, (*this)[name + ".weight"], (*this)[name + ".bias"], stride, padding);
  }
  // In evaluation, written out.
  at::Tensor batch_norm(const at::Tensor& x, const std::string& name) const {
    EXPECT_TRUE(has(name + ".weight")) << name;
    const auto column = [&](const char* key) { return (*this)[name + key].view({1, -1, 1, 1}); };
    return (x - column(".running_mean")) / (column(".running_var") + 1e-5).sqrt() * column(".weight") + column(".bias");
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    EXPECT_TRUE(has(name + ".weight")) << name;
    const at::Tensor y = at::matmul(x, (*this)[name + ".weight"].t());
    return has(name + ".bias") ? y + (*this)[name + ".bias"] : y;
  }
  at::Tensor layer_norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor centred = x - x.mean(-1, true);
    const at::Tensor y = centred / (centred.square().mean(-1, true) + 1e-5).sqrt();
    return has(name + ".weight") ? y * (*this)[name + ".weight"] + (*this)[name + ".bias"] : y;
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

inline void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance = 1e-4) {
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(got, expected, tolerance, tolerance))
      << "differs by up to " << (got - expected).abs().max().item<double>();
  EXPECT_GT(expected.abs().max().item<double>(), 1e-3) << "all but zero: the comparison says nothing";
}

// A pipeline of two stages and two micro-batches, in evaluation.
inline Pipeline evaluating(const LayerChain& chain) {
  Pipeline pipeline(chain, PipelineOptions(2).num_micro_batches(2).seed(5).balance(
                               {chain.size() / 2, chain.size() - chain.size() / 2}));
  shake(*pipeline);
  pipeline->eval();
  return pipeline;
}

}  // namespace gpipe::test
