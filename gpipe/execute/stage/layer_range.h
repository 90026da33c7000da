// LayerRange: consecutive layers of a stage that are run together, and what enters and leaves them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// What crosses a cut between two layers: the tensors that go from one to the next, then those that were stashed before
// the cut and are popped behind it.
struct Crossing {
  Tensors tensors;
  std::vector<bool> requires_grad;
  std::vector<std::int64_t> versions;  // of the stashed ones: see Stashed
  std::size_t num_direct = 0;          // of those that go from one layer to the next
};

struct LayerRange {
  int begin = 0;  // layers, counted from the first of the stage
  int end = 0;
  bool with_loss = false;              // and behind them the loss, where there is one
  std::vector<std::string> skips_in;   // stashed before it and popped in it, in the order of a crossing
  std::vector<std::string> skips_out;  // stashed in it and popped behind it
};

}  // namespace gpipe::detail
