// clip_grad_norm_ over all stages, wherever they are.
#include <torch/torch.h>

#include <limits>
#include <map>

#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/registration_order.h"
#include "gpipe/transport/on_host.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {
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

double PipelineImpl::clip_grad_norm(double max_norm, double norm_type) {
  const CallLock::Scope lock(calls_, "clip_grad_norm_");
  const at::NoGradGuard no_grad;
  Tensors grads;
  std::map<int, Tensors> norms;  // by layer
  std::vector<int> layer_of_norm;
  Tensors own_norms;
  for (const ChainLayer& layer : built_layers()) {
    for (const at::Tensor& parameter : layer.layer.module->parameters()) {
      if (!parameter.grad().defined()) continue;
      grads.push_back(parameter.grad().data());
      own_norms.push_back(on_host(norm_of(grads.back(), norm_type)));
      layer_of_norm.push_back(layer.index);
    }
  }
  detail::WireRecord own;
  own.add("layers", layer_of_norm);
  own.add("norms", own_norms);
  std::vector<detail::WireRecord> by_rank = {own};
  if (ranks_ != nullptr)
    agree(
        make_call("clip_grad_norm_"), [](StepCall&) {}, &by_rank);
  if (ranks_ != nullptr) {  // the other replicas have the same
    const auto first = by_rank.begin() + ranks_->rank_of_worker(0);
    by_rank = {first, first + options_.num_stages()};
  }
  for (const detail::WireRecord& given : by_rank) {
    detail::WireReader reader(given, "these are not norms of gradients");
    const std::size_t count = reader.num_rows({"layers", "norms"});
    const std::vector<int> of_layer = reader.integers<int>("layers", 0, num_layers() - 1);
    const Tensors of_rank = reader.tensors("norms");
    reader.finish();
    for (std::size_t index = 0; index < count; ++index) norms[of_layer[index]].push_back(of_rank[index]);
  }
  std::vector<std::string> names;
  for (const ChainLayer& layer : layers_) names.push_back(layer.name);
  Tensors in_order;
  for (const int layer : registration_order(names)) {
    in_order.insert(in_order.end(), norms[layer].begin(), norms[layer].end());
  }
  if (in_order.empty()) return 0;
  const at::Tensor total = total_of(in_order, norm_type);
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (at::Tensor& grad : grads) grad.mul_(factor);
  return total.item().toDouble();
}

double clip_grad_norm_(const Pipeline& pipeline, double max_norm, double norm_type) {
  return pipeline.ptr()->clip_grad_norm(max_norm, norm_type);
}

}  // namespace gpipe
