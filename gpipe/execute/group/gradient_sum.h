// GradientSum: the gradients of a stage, added up over all replicas of the pipeline.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

namespace gpipe::detail {

// A parameter whose gradient is added up.
struct ReducedParameter {
  at::Tensor tensor;
  int stage = 0;
  bool is_late = false;  // changes after its stage's last backward: it is tied
};

// As it is, it is that of a single replica, which has nothing to add up. Thread-safe where it is said; otherwise one
// caller at a time.
class GradientSum {
 public:
  virtual ~GradientSum() = default;

  // Before a backward; the parameters in the same order on all replicas.
  virtual void begin(const std::function<std::vector<ReducedParameter>()>& /*parameters*/) {}
  // By the stage's worker: its first backward begins. What its parameters have as gradients now counts once.
  virtual void begin_first_backward(int /*stage*/) {}
  // By the stage's worker: its last backward begins. Thread-safe.
  virtual void begin_last_backward(int /*stage*/) {}
  // After the backward: until all sums are there. Throws what went wrong with them.
  virtual void finish() {}
  // Instead, after a backward that failed: the replicas can add nothing up any more.
  virtual void abandon() {}
};

class Replicas;

// Adds up the gradients of several replicas, while the rest of the backward goes on. REQUIRES: `replicas` outlives it.
std::unique_ptr<GradientSum> make_gradient_reducer(Replicas& replicas);

}  // namespace gpipe::detail
