// Rematerialized layers: the layers of a stage, of which some drop their activations and are run again in the backward.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/execute/stage/dropped_layers.h"
#include "gpipe/execute/stage/layer_range.h"
#include "gpipe/model/boundary.h"
#include "gpipe/model/layer.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"

namespace gpipe::detail {

// Note [Rematerialization in ranges]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The stage is cut into ranges of layers, between which the graph is cut as it is between stages: the bits are the same
// for the same reasons. For five layers and "1-3{1-2}", where [ ] has a graph that stays and ( ) one that goes at once:
//
//     forward    [0] (1) (2) (3) [4]     keeps the input of 1
//     backward   4, then 1-3 again:
//     forward        (1) (2) [3]         keeps the input of 1
//     backward   3, then 1-2 again:
//     forward        [1   2]
//     backward   2, 1, 0
//
// A layer that is dropped has a graph while it runs: that tells which of its outputs need a gradient, and kernels may
// depend on it.
//
// Confined to its worker.
class RematerializedLayers {
 public:
  // `whole` is all of the stage, `skips` are those of the whole model. Throws InvalidArgument if the runs are not of
  // these layers, or if two layers share a parameter.
  RematerializedLayers(const std::vector<ChainLayer>& layers, const std::vector<SkipProfile>& skips,
                       const LayerRange& whole, const Rematerialization& rematerialization);
  ~RematerializedLayers();
  RematerializedLayers(const RematerializedLayers&) = delete;
  RematerializedLayers& operator=(const RematerializedLayers&) = delete;

  // The layers may do something else from now on.
  void forget();

  // What is held of a micro-batch for one range of layers.
  struct RangeGraph {
    LayerGraph graph;                      // if it has one
    DroppedLayers::SecondForward dropped;  // if it is dropped
  };
  using RangeGraphs = std::vector<RangeGraph>;
  // Runs a range of layers with what enters it. What leaves has its history.
  using Run = std::function<Crossing(const LayerRange& range, Crossing entries, bool recomputing)>;
  // Runs a graph backward, or a part of it: from the gradients of what left to those of what entered.
  using RunBackward = std::function<Tensors(LayerGraph graph, Tensors grads)>;

  // What leaves has no history. With `graphs` null nothing is kept at all.
  Crossing forward(Crossing entries, bool recomputing, const Run& run, RangeGraphs* graphs);
  // From the gradients of what left to those of what entered.
  Tensors backward(RangeGraphs graphs, Tensors grads, const Run& run, const RunBackward& run_backward);

 private:
  struct Part;
  class Cutter;

  static Crossing run_parts(std::vector<Part>& parts, const LayerRange& around, Crossing entries, bool recomputing,
                            const Run& run, RangeGraphs* graphs);
  static Crossing run_part(Part& part, Crossing entries, bool recomputing, const Run& run, RangeGraph* graph);
  static Tensors backward_parts(std::vector<Part>& parts, const LayerRange& around, RangeGraphs graphs, Tensors grads,
                                const Run& run, const RunBackward& run_backward);
  static Tensors backward_part(Part& part, RangeGraph graph, Tensors grads, const Run& run,
                               const RunBackward& run_backward);
  static void forget(std::vector<Part>& parts);

  const LayerRange whole_;
  std::vector<Part> parts_;
};

// The gradients of such a parameter are added up in the order of its uses within a graph: ranges would change that
// order.
bool share_a_parameter(const std::vector<ChainLayer>& layers);

}  // namespace gpipe::detail
