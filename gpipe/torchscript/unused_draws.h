// Unused draws: operations that draw random numbers stay in a graph that is cleaned, even if nothing uses their
// results.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

namespace gpipe::detail {

// Without them the draws behind would be others than in the module that was not cleaned. Adds an operation behind each
// draw that no pass may take away.
void keep_draws(torch::jit::Graph& graph);

// Takes what `keep_draws` has added out of the graph again.
void let_go_of_draws(torch::jit::Graph& graph);

}  // namespace gpipe::detail
