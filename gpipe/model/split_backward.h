// Split backward: the gradients of a stage's inputs now, those of its weights later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "gpipe/model/boundary.h"
#include "gpipe/model/deferred_weights.h"

namespace gpipe::detail {

// Note [Split backward]
// ~~~~~~~~~~~~~~~~~~~~~
// A graph leads from its roots to its boundary and to the parameters. Parameters are deferred or not. What matters
// about a node of the graph is what it leads to: to something that is needed now (the boundary, a parameter that is not
// deferred), to deferred parameters, or to both. Each edge of the graph is run exactly once:
//
//   now     all edges to nodes that lead to something needed now
//   later   all edges to nodes that lead to deferred parameters only
//
//   roots ── add ── gelu ── addmm ── layer norm ── boundary       now:    the upper line, norm and bias, too
//             │               ├ ─ ─ t ─ ─ weight                  later:  from addmm to weight, from add to table;
//             └ ─ embedding   └── bias   └── norm                         starts from what arrived at add and addmm
//                     └ ─ table
//
// A node with edges of both kinds is split: it runs twice, for other outputs each time, which the functions that
// libtorch generates allow. What arrives at it is noted the first time, and the second run starts there. The engine
// takes nodes in the reverse order of their forwards, in both runs; so gradients of a parameter that is used twice are
// added up in the same order as without the split, and the bits are the same.
//
// A node that computes all its outputs whatever is asked for (a custom function, an in-place change of a view), or that
// has hooks, is not run twice: the parameters below it are not deferred. A convolution computes the gradients of weight
// and bias together, so both are deferred.
//
// Between the two runs only the split nodes and what they lead to later are alive: all others have given their saved
// tensors back right after they ran, and the edges to them are cut.

// Splits the backwards of the graphs of a stage. Confined to its worker.
class SplitBackward {
 public:
  // If all are deferred because of the order of the schedule, a node that cannot be split is refused.
  explicit SplitBackward(DeferredWeights which, bool is_order_given = false)
      : which_(which), is_order_given_(is_order_given) {}

  // Runs the part that is needed now, and gives the part that can wait. Throws InvalidArgument as said above. Where
  // nothing needs an input gradient, all of it can wait.
  ReadyBackward run_inputs(LayerGraph& graph, Tensors grads);

  // Why some weights are not deferred, by the name of the node that cannot be split.
  const std::set<std::string>& unsplit_nodes() const { return unsplit_nodes_; }

 private:
  class Walk;

  std::size_t num_nodes_ = 0;  // of the graph before: micro-batches have graphs alike
  const DeferredWeights which_;
  const bool is_order_given_;
  std::set<std::string> unsplit_nodes_;
};

}  // namespace gpipe::detail
