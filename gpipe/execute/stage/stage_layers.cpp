#include "gpipe/execute/stage/stage_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/noted_input.h"
#include "gpipe/model/skip_store.h"

namespace gpipe::detail {
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
      dropped_(fmt::format("stage {}", parts.index), parts.layers, DroppedLayers::HandedOn::kRefuseChanges),
      split_(parts.deferred_weights, parts.defers_for_order) {
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
  StepRecorder* const recorder = settings_->recorder.get();
  if (recorder != nullptr && range.begin < range.end) {
    run.layer = parts_.layers[range.begin].index;
    recorder->entered(parts_.index, run, tensors);
  }
  for (int index = range.begin; index < range.end; ++index) {
    const ChainLayer& layer = parts_.layers[index];
    run.layer = layer.index;
    at_work_ = &layer;
    if (recorder != nullptr) recorder->probe(run, tensors, layer.layer.forward);
    const LayerScope scope(run);
    const NotedInput given(tensors);
    try {
      tensors = layer.layer.forward(std::move(tensors));
    } catch (...) {
      failed_input_ = given.describe(*layer.layer.module);
      throw;
    }
    if (recorder != nullptr) recorder->left(parts_.index, run, tensors);
  }
  at_work_ = nullptr;
  if (!range.with_loss || !settings_->loss) return;
  run.layer = parts_.layers.back().index + 1;
  at_work_ = &loss_layer();
  if (recorder != nullptr) {
    recorder->probe(run, tensors,
                    [&](const Tensors& outputs) { return Tensors{settings_->loss(micro_batch, outputs)}; });
  }
  const LayerScope scope(run);
  tensors = {settings_->loss(micro_batch, tensors)};
  if (recorder != nullptr) recorder->left(parts_.index, run, tensors);
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
  if (graph != nullptr) {
    const std::vector<bool>& required = entries.requires_grad;
    graph->num_entries = required.size();
    graph->requires_input_grads = std::find(required.begin(), required.end(), true) != required.end();
  }
  if (rematerialized_ != nullptr) {
    return rematerialized_->forward(std::move(entries), recomputing, run_for(micro_batch),
                                    graph != nullptr ? &graph->ranges : nullptr);
  }
  std::shared_ptr<Boundary> boundary = Boundary::enter(entries.tensors, entries.requires_grad);
  Crossing exits = run(micro_batch, whole_, std::move(entries), recomputing);
  if (graph != nullptr) graph->whole = {std::move(boundary), Roots(exits.tensors)};
  return exits;
}

RematerializedLayers::Run StageLayers::run_for(int micro_batch) {
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

Tensors StageLayers::run_backward(int micro_batch, Graph graph, Tensors grads,
                                  const RematerializedLayers::RunBackward& run) {
  if (rematerialized_ == nullptr) return run(std::move(graph.whole), std::move(grads));
  return rematerialized_->backward(std::move(graph.ranges), std::move(grads), run_for(micro_batch), run);
}

Tensors StageLayers::backward(int micro_batch, Graph graph, Tensors grads) {
  return run_backward(micro_batch, std::move(graph), std::move(grads), [](LayerGraph part, Tensors leaving) {
    part.roots.backward_from(std::move(leaving)).run();
    return part.boundary->take_grads();
  });
}

Tensors StageLayers::input_grad(int micro_batch, Graph graph, Tensors grads, Deferred& deferred) {
  if (!graph.requires_input_grads && parts_.deferred_weights != DeferredWeights::kNone) {
    deferred.graph = std::move(graph);
    deferred.grads = std::move(grads);
    return Tensors(deferred.graph.num_entries);
  }
  return run_backward(micro_batch, std::move(graph), std::move(grads), [&](LayerGraph part, Tensors leaving) {
    ReadyBackward later = split_.run_inputs(part, std::move(leaving));
    if (!later.empty()) deferred.backwards.push_back(std::move(later));
    return part.boundary->take_grads();
  });
}

void StageLayers::weight_grad(int micro_batch, Deferred deferred) {
  if (!deferred.grads.empty()) backward(micro_batch, std::move(deferred.graph), std::move(deferred.grads));
  for (ReadyBackward& backward : deferred.backwards) backward.run();
}

}  // namespace gpipe::detail
