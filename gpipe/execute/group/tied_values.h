// Tied values: a weight that a layer on another rank owns is brought from there at the beginning of each step.
#pragma once

#include <functional>
#include <vector>

#include "gpipe/model/tie.h"

namespace gpipe::detail {

class Peers;

// What brings them: all ranks call it, one caller at a time. `worker_of_layer` by layer. It throws as a flow's ends do,
// and InvalidArgument if the weights do not fit together. REQUIRES: `ties` and `peers` outlive it.
std::function<void()> connect_tied_values(const std::vector<Tie>& ties, const std::vector<int>& worker_of_layer,
                                          Peers& peers);

}  // namespace gpipe::detail
