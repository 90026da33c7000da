// Cut rules: between which operations a flat graph may be cut, so that the parts compute what the whole computes.
#pragma once

#include <string>
#include <vector>

#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/graph_aliases.h"

namespace gpipe::detail {

// Note [Where a module may be cut]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// What is made before a cut and needed behind it is handed on: from thread to thread, or to another process, and a
// backward begins there anew. So between two layers there are only values, and nothing may reach around them:
//
// - A value that is handed on must not be written to behind the cut, by itself or through a view: those who have it
//   before the cut would not see it, or would see it too late. A list that grows may be handed on: it is made anew
//   behind the cut, if no other value that is handed on is, or holds, the same list.
// - A value that is handed on must not be a view whose base was written to since the view was made. libtorch gives such
//   a view its place in the graph when it is used next, which the cut would be.
// - State that is written to (running statistics, counters) is used within one layer, and so are views of it: the next
//   micro-batch changes it while later layers are still at work on this one.
// - Within `with` blocks, such as no_grad, nothing is cut, nor between calls of set_grad_enabled.
// - Before a gradient that the module computes itself, nothing is cut: it needs the graph of all that went before.
// - What cannot be written down, such as objects of classes, is not handed on.
struct CutRules {
  // One a position: allowed[k] says whether a layer may end before node k and the next begin with it. The first is
  // never allowed.
  std::vector<bool> allowed;
};

CutRules find_cuts(const FlatGraph& flat, const GraphAliases& aliases);

}  // namespace gpipe::detail
