// FLOP counter: floating-point operations of whatever runs, on any device.
#pragma once

#include <cstdint>

namespace gpipe {

// Counts what this thread runs while it lives, forward and backward (backward passes of CPU and Meta tensors run in the
// thread that calls them):
//
//   - matrix products and convolutions exactly, two per multiply-add; the gradients of a convolution by its input and
//     by its weights count as much as itself, each
//   - everything else as one per floating-point element that it writes; views and empty tensors as nothing
//
// The figure is a function of shapes alone: the same on the CPU and on the Meta device. A kernel that hides products,
// such as a fused LSTM or attention, counts like everything else. Counters nest, and each counts all. Costs a
// microsecond or two an operation.
//
// Confined to its thread.
class FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  // Since it was made or reset.
  std::int64_t flops() const;
  // Of them, those of matrix products and convolutions.
  std::int64_t product_flops() const;
  void reset();

 private:
  std::int64_t start_ = 0;
  std::int64_t product_start_ = 0;
};

}  // namespace gpipe
