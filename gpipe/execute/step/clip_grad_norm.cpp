#include "gpipe/execute/step/clip_grad_norm.h"

#include <torch/torch.h>

#include <limits>
#include <map>

#include "gpipe/execute/model/registration_order.h"
#include "gpipe/transport/stage_stream.h"
#include "gpipe/transport/wire_record.h"

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
  std::vector<int> layer_of_norm;
  Tensors own_norms;
  for (const ChainLayer& layer : engine.model().built_layers()) {
    for (const at::Tensor& parameter : layer.layer.module->parameters()) {
      if (!parameter.grad().defined()) continue;
      grads.push_back(parameter.grad().data());
      own_norms.push_back(on_host(norm_of(grads.back(), norm_type)));
      layer_of_norm.push_back(layer.index);
    }
  }
  WireRecord own;
  own.add("layers", layer_of_norm);
  own.add("norms", own_norms);
  std::vector<WireRecord> by_rank = {own};
  Group& group = engine.group();
  group.agree(
      engine.make_call("clip_grad_norm_"), [](StepCall&) {}, &by_rank);
  // The other replicas have the same.
  const World& world = group.world();
  const auto first = by_rank.begin() + world.replica() * world.num_stages();
  for (auto given = first; given != first + world.num_stages(); ++given) {
    WireReader reader(*given, "these are not norms of gradients");
    const std::size_t count = reader.num_rows({"layers", "norms"});
    const std::vector<int> of_layer = reader.integers<int>("layers", 0, engine.model().num_layers() - 1);
    const Tensors of_rank = reader.tensors("norms");
    reader.finish();
    for (std::size_t index = 0; index < count; ++index) norms[of_layer[index]].push_back(of_rank[index]);
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
