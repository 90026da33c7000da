// StageLayers: runs the layers of a stage, and keeps, drops and runs again what a backward needs of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpipe/execute/stage/dropped_layers.h"
#include "gpipe/execute/stage/layer_range.h"
#include "gpipe/execute/stage/rematerialized_layers.h"
#include "gpipe/execute/stage/stage_parts.h"
#include "gpipe/execute/stage/step_settings.h"
#include "gpipe/model/boundary.h"
#include "gpipe/model/module_modes.h"
#include "gpipe/model/split_backward.h"

namespace gpipe::detail {

// Confined to its worker during a step; the caller may touch it between steps.
class StageLayers {
 public:
  // Throws as RematerializedLayers does. REQUIRES: `parts` outlive it.
  explicit StageLayers(const StageParts& parts);

  // REQUIRES: `settings` outlives the step.
  void begin_step(const StepSettings& settings);
  // Also after a step that has failed.
  void end_step();

  // What is held of a micro-batch for its backward.
  struct Graph {
    DroppedLayers::SecondForward dropped;  // from the forward to the recompute, if there is one
    LayerGraph whole;                      // this, or the ranges, for the backward
    RematerializedLayers::RangeGraphs ranges;
    std::size_t num_entries = 0;
    bool requires_input_grads = false;  // whether anything that entered needs a gradient
  };
  // What a weight gradient needs of a micro-batch whose input gradient has been computed.
  struct Deferred {
    std::vector<ReadyBackward> backwards;
    // All of the backward, where nothing needed an input gradient; no gradients: it was split.
    Graph graph;
    Tensors grads;
  };

  // Without a graph: no backward follows.
  Crossing forward(int micro_batch, Crossing entries);
  // The graph stays for the backward.
  Crossing forward_with_graph(int micro_batch, Crossing entries, Graph& graph);
  // The graph goes at once, and `recompute` makes it again from the entries. It is made for all that: it tells which
  // outputs need a gradient, and the recompute will need the same memory.
  Crossing forward_dropped(int micro_batch, Crossing entries, Graph& graph);
  void recompute(int micro_batch, Graph& graph);
  // From the gradients of what left to those of what entered; adds to the gradients of the parameters.
  Tensors backward(int micro_batch, Graph graph, Tensors grads);
  // The same in two parts: see Note [Split backward]. The first gives the gradients of what entered.
  Tensors input_grad(int micro_batch, Graph graph, Tensors grads, Deferred& deferred);
  void weight_grad(int micro_batch, Deferred deferred);
  // Names of nodes of the graphs that kept weights from being deferred, in any step so far.
  const std::set<std::string>& unsplit_nodes() const { return split_.unsplit_nodes(); }

  // The layer at work: "layer 3 (relu)". Empty outside a layer. Thread-safe.
  std::string where() const;
  // After a throw: the same, with what the layer was given.
  std::string failed_at() const;

 private:
  Crossing run(int micro_batch, const LayerRange& range, Crossing entries, bool recomputing);
  void run_layers(int micro_batch, const LayerRange& range, Tensors& tensors, bool recomputing);
  // All of the stage. What the backward needs goes to `graph`; nowhere if that is null.
  Crossing run_with_graph(int micro_batch, Crossing entries, bool recomputing, Graph* graph);
  // `run` for this micro-batch, as RematerializedLayers calls it.
  RematerializedLayers::Run run_for(int micro_batch);
  Tensors run_backward(int micro_batch, Graph graph, Tensors grads, const RematerializedLayers::RunBackward& run);

  const StageParts& parts_;
  const LayerRange whole_;
  const StepSettings* settings_ = nullptr;
  std::atomic<const ChainLayer*> at_work_ = nullptr;
  std::string failed_input_;  // what the layer that threw was given
  ModuleModes modes_;
  DroppedLayers dropped_;                                 // all of the stage, when it is recomputed
  std::unique_ptr<RematerializedLayers> rematerialized_;  // null: its activations are kept
  SplitBackward split_;
};

}  // namespace gpipe::detail
