// Boundary: where a stage's autograd graph begins. It takes the place of leaves.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>
#include <vector>

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// The tensors without their history, in the same memory. A tensor that occurs twice stays one tensor that occurs twice,
// so that its gradient is summed up in one place.
Tensors detached(const Tensors& tensors);

// The first position that holds the same tensor.
std::size_t first_same(const Tensors& tensors, std::size_t index);

// Note [Boundaries are nodes, not leaves]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The tensors a stage receives could be made leaves of its graph. But a leaf refuses to be changed in place (a stage
// may well begin with ReLU(inplace)), and it copies gradients whose strides differ from its own: the operations before
// the cut would then see another memory layout than without the cut, and may add up in another order. A node that only
// takes what arrives gives the previous stage exactly what autograd would have given it.
class Boundary : public torch::autograd::Node {
 public:
  // Makes `tensors` enter a graph: those that require a gradient get the boundary as their history.
  static std::shared_ptr<Boundary> enter(Tensors& tensors, const std::vector<bool>& requires_grad);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;

  // After the backward: the gradient of each tensor that entered, undefined where there is none. Call once.
  Tensors take_grads();
  // Whether any of the tensors that entered needs a gradient.
  bool requires_grad() const { return !position_.empty(); }

 private:
  std::vector<int> position_;  // of each gradient among the tensors
  Tensors grads_;
};

// A backward that is ready to run: the edges at which gradients go into a graph, and these gradients.
class ReadyBackward {
 public:
  // `edge` is valid, `grad` is defined.
  void add(torch::autograd::Edge edge, at::Tensor grad);
  bool empty() const { return edges_.empty(); }
  const std::vector<torch::autograd::Edge>& edges() const { return edges_; }
  // Those gradients that go into such nodes; they are this one's no more.
  ReadyBackward take_if(const std::function<bool(const torch::autograd::Node*)>& is_taken);

  // Runs the graph and frees it: adds to the gradients of parameters, gives boundaries their own. Outside of autocast,
  // as libtorch does: a backward runs in the types its forward has chosen. Call one of the two, once.
  void run();
  // Runs only what leads to `targets`, and frees nothing of the graph.
  void run_towards(std::vector<torch::autograd::Edge> targets);

 private:
  void run(bool keep_graph, std::vector<torch::autograd::Edge> targets);

  std::vector<torch::autograd::Edge> edges_;
  Tensors grads_;  // one an edge
};

// The graph's other end: where the gradients of a stage's outputs go in. It does not keep the outputs themselves alive.
class Roots {
 public:
  Roots() = default;
  explicit Roots(const Tensors& outputs);

  bool empty() const { return edges_.empty(); }
  // The backward from these gradients; the roots are empty then. An undefined gradient means zero; nothing is run at
  // all if all of them are.
  ReadyBackward backward_from(Tensors grads);

 private:
  std::vector<torch::autograd::Edge> edges_;  // one an output; without a function where no gradient is needed
};

// The graph of consecutive layers between its two ends.
struct LayerGraph {
  std::shared_ptr<Boundary> boundary;
  Roots roots;
};

}  // namespace gpipe::detail
