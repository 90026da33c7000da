#include "gpipe/execute/stage/stage_layers.h"

#include <fmt/format.h>

#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/noted_input.h"
#include "gpipe/model/skip.h"

namespace gpipe {
namespace {

// Stands for the loss among the layers at work.
const ChainLayer& loss_layer() {
  static const ChainLayer layer;
  return layer;
}

std::vector<bool> requires_grad_of(const Tensors& tensors) {
  std::vector<bool> requires_grad;
  requires_grad.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) requires_grad.push_back(tensor.defined() && tensor.requires_grad());
  return requires_grad;
}

LayerRange whole_range(const StageParts& parts) {
  LayerRange whole;
  whole.end = static_cast<int>(parts.layers.size());
  whole.with_loss = parts.is_last;
  for (const auto& names : parts.skips_in) whole.skips_in.insert(whole.skips_in.end(), names.begin(), names.end());
  for (const auto& names : parts.skips_out) whole.skips_out.insert(whole.skips_out.end(), names.begin(), names.end());
  return whole;
}

}  // namespace

StageLayers::StageLayers(const StageParts& parts)
    : parts_(parts),
      whole_(whole_range(parts)),
      modes_(parts.layers),
      dropped_(fmt::format("stage {}", parts.index), parts.layers, DroppedLayers::HandedOn::kRefuseChanges) {
  if (parts.rematerialization.empty()) return;
  rematerialized_ = std::make_unique<RematerializedLayers>(parts.layers, parts.skips, whole_, parts.rematerialization);
}

void StageLayers::begin_step(const StepSettings& settings) {
  settings_ = &settings;
  if (!modes_.have_changed()) return;
  dropped_.forget();
  if (rematerialized_ != nullptr) rematerialized_->forget();
}

void StageLayers::end_step() {
  settings_ = nullptr;
  at_work_ = nullptr;
  failed_input_.clear();
}

std::string StageLayers::where() const {
  const ChainLayer* layer = at_work_;
  if (layer == &loss_layer()) return "the loss";
  return layer == nullptr ? "" : fmt::format("layer {} ({})", layer->index, layer->name);
}

std::string StageLayers::failed_at() const {
  const std::string layer = where();
  return layer.empty() ? layer : layer + failed_input_;
}

void StageLayers::run_layers(int micro_batch, const LayerRange& range, Tensors& tensors, bool recomputing) {
  LayerRun run;
  run.seed = settings_->seed;
  run.step = settings_->step;
  run.micro_batch = settings_->first_micro_batch + micro_batch;
  run.first_sample = settings_->first_sample + settings_->micro_batches[micro_batch].first_sample;
  run.recomputing = recomputing;
  for (int index = range.begin; index < range.end; ++index) {
    const ChainLayer& layer = parts_.layers[index];
    run.layer = layer.index;
    at_work_ = &layer;
    const LayerScope scope(run);
    const NotedInput given(tensors);
    try {
      tensors = layer.layer.forward(std::move(tensors));
    } catch (...) {
      failed_input_ = given.describe(*layer.layer.module);
      throw;
    }
  }
  at_work_ = nullptr;
  if (!range.with_loss || !settings_->loss) return;
  run.layer = parts_.layers.back().index + 1;
  at_work_ = &loss_layer();
  const LayerScope scope(run);
  tensors = {settings_->loss(micro_batch, tensors)};
  at_work_ = nullptr;
}

Crossing StageLayers::run(int micro_batch, const LayerRange& range, Crossing entries, bool recomputing) {
  SkipMap store;
  for (std::size_t index = 0; index < range.skips_in.size(); ++index) {
    store.stashed[range.skips_in[index]] = {std::move(entries.tensors[entries.num_direct + index]),
                                            entries.versions[index]};
  }
  const SkipScope scope(store);
  Crossing exits;
  exits.tensors = std::move(entries.tensors);
  exits.tensors.resize(entries.num_direct);
  run_layers(micro_batch, range, exits.tensors, recomputing);
  exits.num_direct = exits.tensors.size();
  for (const std::string& name : range.skips_out) {
    Stashed stashed = store.take(name);
    exits.tensors.push_back(std::move(stashed.tensor));
    exits.versions.push_back(stashed.version);
  }
  if (!store.stashed.empty()) {
    throw SkipError(fmt::format(
        "\"{}\" is stashed, but not popped, unlike in the first batch; every forward must use the same skips",
        store.stashed.begin()->first));
  }
  exits.requires_grad = requires_grad_of(exits.tensors);
  return exits;
}

Crossing StageLayers::run_with_graph(int micro_batch, Crossing entries, bool recomputing, Graph* graph) {
  if (rematerialized_ != nullptr) {
    return rematerialized_->forward(std::move(entries), recomputing, runner(micro_batch),
                                    graph != nullptr ? &graph->ranges : nullptr);
  }
  std::shared_ptr<Boundary> boundary = Boundary::enter(entries.tensors, entries.requires_grad);
  Crossing exits = run(micro_batch, whole_, entries, recomputing);
  if (graph != nullptr) {
    graph->boundary = std::move(boundary);
    graph->roots = Roots(exits.tensors);
  }
  return exits;
}

RematerializedLayers::Run StageLayers::runner(int micro_batch) {
  return [this, micro_batch](const LayerRange& range, Crossing entries, bool recomputing) {
    return run(micro_batch, range, std::move(entries), recomputing);
  };
}

Crossing StageLayers::forward(int micro_batch, Crossing entries) {
  return run(micro_batch, whole_, std::move(entries), /*recomputing=*/false);
}

Crossing StageLayers::forward_with_graph(int micro_batch, Crossing entries, Graph& graph) {
  return run_with_graph(micro_batch, std::move(entries), /*recomputing=*/false, &graph);
}

Crossing StageLayers::forward_dropped(int micro_batch, Crossing entries, Graph& graph) {
  const auto run_once = [&](Crossing entering) {
    return run_with_graph(micro_batch, std::move(entering), /*recomputing=*/false, nullptr);
  };
  return dropped_.forward(std::move(entries), run_once, graph.dropped);
}

void StageLayers::recompute(int micro_batch, Graph& graph) {
  dropped_.again(std::move(graph.dropped), [&](Crossing entering) {
    return run_with_graph(micro_batch, std::move(entering), /*recomputing=*/true, &graph);
  });
}

Tensors StageLayers::backward(int micro_batch, Graph graph, Tensors grads) {
  if (rematerialized_ != nullptr) {
    return rematerialized_->backward(std::move(graph.ranges), std::move(grads), runner(micro_batch));
  }
  graph.roots.backward(std::move(grads));
  return graph.boundary->take_grads();
}

}  // namespace gpipe
