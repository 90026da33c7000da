#include "gpipe/execute/stage/own_gradients.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

namespace gpipe::detail {
namespace {

class CopyOfShared : public torch::autograd::FunctionPreHook {
 public:
  explicit CopyOfShared(const torch::autograd::Node& accumulation)
      : accumulation_(static_cast<const torch::autograd::AccumulateGrad&>(accumulation)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    const at::Tensor& grad = grads.front();
    const bool becomes_the_gradient = !accumulation_.variable.grad().defined();
    if (!becomes_the_gradient || !grad.defined() || !grad.has_storage() || grad.storage().use_count() == 1)
      return grads;
    return {grad.clone()};
  }

 private:
  const torch::autograd::AccumulateGrad& accumulation_;  // which owns the hook
};

}  // namespace

void OwnGradients::watch(const std::vector<ChainLayer>& layers) {
  const at::AutoGradMode grad_mode(true);
  for (const ChainLayer& layer : layers) {
    for (const at::Tensor& parameter : layer.layer.module->parameters()) {
      if (!parameter.requires_grad() || parameter.grad().defined()) continue;
      const std::shared_ptr<torch::autograd::Node> node = torch::autograd::impl::grad_accumulator(parameter);
      if (node != nullptr && watched_.insert(node).second) node->add_pre_hook(std::make_unique<CopyOfShared>(*node));
    }
  }
}

}  // namespace gpipe::detail
