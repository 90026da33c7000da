// clip_grad_norm over all stages, wherever they are.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "gpipe/execute/step/calls.h"
#include "gpipe/execute/step/stage_work.h"
#include "gpipe/transport/stage_stream.h"
#include "gpipe/transport/wire_table.h"

namespace gpipe::detail {
namespace {

// The norm of the gradient of a weight at that place of the model, see ScopeTree.
struct GradientNorm {
  int place = 0;
  at::Tensor norm;
};

struct LayerGradient {
  int layer = 0;
  int place = 0;
  at::Tensor grad;
};

// Calls `work` with the index of every gradient. On the stages' own workers, at the same time, where these have as many
// intra-op threads as the caller: sums over elements then have the same bits.
void for_each_gradient(Engine& engine, const std::vector<LayerGradient>& gradients,
                       const std::function<void(std::size_t index)>& work) {
  const auto of_stages = [&](const auto& is_wanted) {
    for (std::size_t index = 0; index < gradients.size(); ++index) {
      if (is_wanted(gradients[index].layer)) work(index);
    }
  };
  if (engine.split() == nullptr || at::get_num_threads() != engine.options().threads_per_stage()) {
    of_stages([](int) { return true; });
    return;
  }
  run_on_stages(engine, [&](int stage) {
    const at::NoGradGuard no_grad;
    of_stages([&](int layer) { return engine.cut().stage_of(layer) == stage; });
  });
}

// Those of a device at once, so that the host waits once for each device.
void bring_to_host(std::vector<GradientNorm>& norms) {
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor*>> alike;
  for (auto& [layer, norm] : norms) {
    if (!norm.is_cpu()) alike[{norm.device().str(), norm.scalar_type()}].push_back(&norm);
  }
  for (const auto& [place, on_device] : alike) {
    Tensors values;
    for (const at::Tensor* const norm : on_device) values.push_back(*norm);
    const Tensors here = on_host(at::stack(values)).unbind();
    for (std::size_t index = 0; index < here.size(); ++index) *on_device[index] = here[index];
  }
}

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
  const ScopeTree& scopes = engine.model().scopes();
  std::vector<LayerGradient> gradients;
  for (const ChainLayer& layer : engine.model().built_layers()) {
    for (const auto& item : layer.layer.module->named_parameters()) {
      const at::Tensor& grad = item.value().grad();
      if (!grad.defined()) continue;
      gradients.push_back({layer.index, scopes.place_of(layer.index, layer.scope + item.key()), grad.data()});
    }
  }
  std::vector<GradientNorm> own_norms(gradients.size());
  for_each_gradient(engine, gradients, [&](std::size_t index) {
    own_norms[index] = {gradients[index].place, norm_of(gradients[index].grad, norm_type)};
  });
  bring_to_host(own_norms);
  const std::tuple columns(column("places", &GradientNorm::place, 0, scopes.num_places()),
                           column("norms", &GradientNorm::norm));
  std::vector<WireRecord> by_rank(1);
  add_table(by_rank.front(), own_norms, columns);
  Group& group = engine.group();
  group.agree(
      engine.make_call("clip_grad_norm_"), [](StepCall&) {}, &by_rank);
  std::map<int, Tensors> norms;  // by place
  // The other replicas have the same.
  const World& world = group.world();
  const auto first = by_rank.begin() + world.replica() * world.num_stages();
  for (auto given = first; given != first + world.num_stages(); ++given) {
    WireReader reader(*given, "these are not norms of gradients");
    for (const auto& [place, norm] : read_table<GradientNorm>(reader, columns)) norms[place].push_back(norm);
    reader.finish();
  }
  Tensors in_order;
  for (const auto& [place, of_place] : norms) in_order.insert(in_order.end(), of_place.begin(), of_place.end());
  if (in_order.empty()) return 0;
  const at::Tensor total = total_of(in_order, norm_type);
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  if (factor.item().toDouble() != 1) {
    for_each_gradient(engine, gradients, [&](std::size_t index) { gradients[index].grad.mul_(factor); });
  }
  return total.item().toDouble();
}

}  // namespace gpipe::detail
