// Layer choice: which of the allowed cuts make the layers of a network.
#pragma once

#include <vector>

namespace gpipe::detail {

// What is known of the operations of a flat graph, and of the cut before each.
struct CutCosts {
  std::vector<bool> allowed;   // as in CutRules
  std::vector<int> cost;       // tensors that are handed on, and two for each other value or part of a tensor
  std::vector<int> heavy;      // of each operation: how many convolutions, matrix products and the like are in it
  std::vector<bool> is_light;  // whether the operation computes a tensor, and is worth a layer where there are too few
};

// The first operations of all layers but the first, in ascending order.
//
// A layer has one heavy operation at least, and what follows it up to the next, so that a norm stays with its
// convolution. Cuts are made wherever a single tensor is handed on between two heavy operations, and within layers that
// have more than their share, the total over `min_layers`, where least is handed on. If that gives fewer than a quarter
// of `min_layers`, as in a small network, cuts are made between light operations, too.
std::vector<int> choose_cuts(const CutCosts& costs, int min_layers);

}  // namespace gpipe::detail
