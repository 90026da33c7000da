#include "gpipe/execute/step/clip_grad_norm.h"

#include <torch/torch.h>

#include <limits>
#include <map>

#include "gpipe/execute/registration_order.h"
#include "gpipe/transport/on_host.h"

namespace gpipe::detail {
namespace {

at::Tensor norm_of(const at::Tensor& grad, double norm_type) {
  return norm_type == std::numeric_limits<double>::infinity() ? grad.abs().max() : grad.norm(norm_type);
}

// As torch::nn::utils::clip_grad_norm_ has it, from the norms of all gradients, in order.
at::Tensor total_of(const Tensors& norms, double norm_type) {
  if (norm_type == 0) return torch::full({}, static_cast<double>(norms.size()));
  if (norms.size() == 1) return norms.front();
  const at::Tensor all = at::stack(norms);
  return norm_type == std::numeric_limits<double>::infinity() ? all.max() : all.norm(norm_type);
}

}  // namespace

double clip_grad_norm(Engine& engine, double max_norm, double norm_type) {
  const CallLock::Scope lock(engine.calls(), "clip_grad_norm_");
  const at::NoGradGuard no_grad;
  Tensors grads;
  std::map<int, Tensors> norms;  // by layer
  std::vector<std::int64_t> layer_of_norm;
  Tensors own(1);
  for (const ChainLayer& layer : engine.model().built_layers()) {
    for (const at::Tensor& parameter : layer.layer.module->parameters()) {
      if (!parameter.grad().defined()) continue;
      grads.push_back(parameter.grad().data());
      own.push_back(on_host(norm_of(grads.back(), norm_type)));
      layer_of_norm.push_back(layer.index);
    }
  }
  own[0] = torch::tensor(layer_of_norm, torch::kLong);
  std::vector<Tensors> by_rank = {own};
  Group& group = engine.group();
  group.agree(
      engine.make_call("clip_grad_norm_"), [](StepCall&) {}, &by_rank);
  // The other replicas have the same.
  const World& world = group.world();
  const auto first = by_rank.begin() + world.replica() * world.num_stages();
  by_rank = {first, first + world.num_stages()};
  for (const Tensors& given : by_rank) {
    for (std::size_t index = 1; index < given.size(); ++index) {
      const auto layer = given[0].data_ptr<std::int64_t>()[index - 1];
      norms[static_cast<int>(layer)].push_back(given[index]);
    }
  }
  Tensors in_order;
  for (const int layer : registration_order(engine.model().layer_names())) {
    in_order.insert(in_order.end(), norms[layer].begin(), norms[layer].end());
  }
  if (in_order.empty()) return 0;
  const at::Tensor total = total_of(in_order, norm_type);
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (at::Tensor& grad : grads) grad.mul_(factor);
  return total.item().toDouble();
}

}  // namespace gpipe::detail
