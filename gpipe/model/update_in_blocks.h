// An optimizer's step that goes through large parameters in blocks, which stay in the processor's cache from the first
// of its operations to the last.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <vector>

namespace gpipe::detail {

// Adam, AdamW, RMSprop and Adagrad go through a parameter, its gradient and its states up to fourteen times a step, with
// temporary tensors of its size: most of what they take is traffic with memory, and pages that the system has to clear
// for the temporaries. Here they do the same operations to one block after another. The bits are those of the whole
// step, since these operations are elementwise and blocks end where the vectors of a processor do.
//
// SGD has no temporaries, and goes through its tensors two times; blocks make it slower where a parameter fits into a
// cache. It, and what somebody derived from an optimizer, take their own steps.
//
// Thread-compatible.
class UpdateInBlocks {
 public:
  using MakeOptimizer =
      std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)>;

  // Elements of a block: smaller ones take longer, as an operation has a price of its own; see update_benchmark.
  static constexpr std::int64_t kBlockElements = 1 << 17;

  // `make` makes optimizers of the kind of those that step() is called with.
  explicit UpdateInBlocks(const MakeOptimizer& make);

  // A step of `optimizer`. Throws what that throws; a parameter may then be updated in part.
  void step(torch::optim::Optimizer& optimizer);

 private:
  // Whether there are blocks to be made: a large, contiguous parameter with a gradient and states that are like it.
  static bool fits(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
  void update(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

  at::Tensor block_;                                   // stands for one block after another
  std::unique_ptr<torch::optim::Optimizer> of_block_;  // none if the kind has nothing to win
};

}  // namespace gpipe::detail
