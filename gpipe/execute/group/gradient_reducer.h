// GradientReducer: adds up the gradients of all replicas of a stage, while the rest of the backward goes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpipe/execute/group/gradient_sum.h"

namespace torch::autograd {
struct Node;
}

namespace gpipe {

class Replicas;

// Note [Gradients of all replicas]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A gradient is final when the last backward of its stage has accumulated it: a hook behind the accumulation says so.
// Final gradients are put into buckets, in the reverse order of the layers, and a thread adds up one bucket after the
// other. The first backward only finds out which gradients are accumulated exactly once in that last backward; all
// others, and those of tied weights, are final at its end only.
//
// What the parameters had before counts once: the first replica keeps it, the others set theirs to zero.
//
// Thread-safe where it is said; otherwise one caller at a time.
class GradientReducer : public GradientSum {
 public:
  // REQUIRES: `replicas` outlives it.
  explicit GradientReducer(Replicas& replicas);
  ~GradientReducer() override;
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  void begin(const std::function<std::vector<ReducedParameter>()>& parameters) override;
  void begin_first_backward(int stage) override;
  void begin_last_backward(int stage) override;
  void finish() override;
  void abandon() override;

 private:
  struct Bucket {
    std::vector<std::size_t> parameters;
    std::size_t num_missing = 0;  // of those, in this backward
  };
  struct Progress;  // what the hooks see
  class Hook;

  void watch(const std::vector<ReducedParameter>& parameters);
  void make_buckets();
  void start();
  void reduce_all();
  void reduce(const Bucket& bucket);
  void join();

  Replicas& replicas_;
  std::vector<ReducedParameter> parameters_;
  std::map<std::shared_ptr<torch::autograd::Node>, std::shared_ptr<std::size_t>> hooked_;  // which parameter it is
  const std::shared_ptr<Progress> progress_;
  bool is_known_ = false;  // which gradients are accumulated once
  std::thread thread_;
  std::exception_ptr error_;  // of the thread
};

}  // namespace gpipe
