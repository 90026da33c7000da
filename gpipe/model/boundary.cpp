#include "gpipe/model/boundary.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "gpipe/model/autocast.h"
#include "gpipe/model/memory_account.h"

namespace gpipe::detail {
namespace {

class NoAutocast {
 public:
  NoAutocast() {
    autocast::set_enabled(at::kCUDA, false);
    autocast::set_enabled(at::kCPU, false);
  }
  ~NoAutocast() {
    autocast::set_enabled(at::kCUDA, cuda_enabled_);
    autocast::set_enabled(at::kCPU, cpu_enabled_);
  }

 private:
  const bool cuda_enabled_ = autocast::is_enabled(at::kCUDA);
  const bool cpu_enabled_ = autocast::is_enabled(at::kCPU);
};

// What a backward is started with, which nobody reads; for gradients on the CPU one for all, on no stage's account.
// Never freed: other threads may still run at exit.
const at::Tensor& start_on_cpu() {
  static const auto* const start = [] {
    const MemoryScope unbooked(nullptr);
    return new at::Tensor(at::zeros({}));
  }();
  return *start;
}

// The root of a backward. The engine keeps what it is started with until it has ended; this gives the gradients away,
// so that each is freed once it has been used.
class Source : public torch::autograd::Node {
 public:
  Source(torch::autograd::edge_list&& edges, torch::autograd::variable_list grads, const at::Tensor& start)
      : Node(std::move(edges)), grads_(std::move(grads)) {
    add_input_metadata(start);
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*start*/) override {
    return std::move(grads_);
  }

 private:
  torch::autograd::variable_list grads_;
};

}  // namespace

std::size_t first_same(const Tensors& tensors, std::size_t index) {
  std::size_t first = 0;
  while (!tensors[first].is_same(tensors[index])) ++first;
  return first;
}

namespace {

// As tensor.detach(), without the way through the dispatcher.
at::Tensor detached_one(const at::Tensor& tensor) {
  if (tensor.is_inference()) return tensor.detach();
  return torch::autograd::make_variable_non_differentiable_view(tensor, tensor,
                                                                /*allow_tensor_metadata_change=*/false);
}

}  // namespace

Tensors detached(const Tensors& tensors) {
  Tensors result;
  result.reserve(tensors.size());
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    const std::size_t first = first_same(tensors, index);
    const at::Tensor& tensor = tensors[index];
    result.push_back(first < index ? result[first] : tensor.defined() ? detached_one(tensor) : tensor);
  }
  return result;
}

std::shared_ptr<Boundary> Boundary::enter(Tensors& tensors, const std::vector<bool>& requires_grad) {
  const std::shared_ptr<Boundary> boundary(new Boundary(), torch::autograd::deleteNode);
  boundary->grads_.resize(tensors.size());
  const Tensors given = tensors;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    if (!requires_grad[index]) continue;
    const std::size_t first = first_same(given, index);
    if (first < index) {
      tensors[index] = tensors[first];
      continue;
    }
    torch::autograd::create_gradient_edge(tensors[index], boundary);
    boundary->position_.push_back(static_cast<int>(index));
  }
  return boundary;
}

torch::autograd::variable_list Boundary::apply(torch::autograd::variable_list&& grads) {
  for (std::size_t index = 0; index < grads.size(); ++index) grads_[position_[index]] = std::move(grads[index]);
  return {};
}

Tensors Boundary::take_grads() { return std::move(grads_); }

Roots::Roots(const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    edges_.push_back(output.defined() && output.requires_grad() ? torch::autograd::impl::gradient_edge(output)
                                                                : torch::autograd::Edge());
  }
}

ReadyBackward Roots::backward_from(Tensors grads) {
  ReadyBackward backward;
  for (std::size_t index = 0; index < edges_.size(); ++index) {
    if (!edges_[index].is_valid() || !grads[index].defined()) continue;
    backward.add(std::move(edges_[index]), std::move(grads[index]));
  }
  edges_.clear();
  return backward;
}

void ReadyBackward::add(torch::autograd::Edge edge, at::Tensor grad) {
  edges_.push_back(std::move(edge));
  grads_.push_back(std::move(grad));
}

ReadyBackward ReadyBackward::take_if(const std::function<bool(const torch::autograd::Node*)>& is_taken) {
  ReadyBackward taken;
  ReadyBackward left;
  for (std::size_t index = 0; index < edges_.size(); ++index) {
    ReadyBackward& part = is_taken(edges_[index].function.get()) ? taken : left;
    part.add(std::move(edges_[index]), std::move(grads_[index]));
  }
  *this = std::move(left);
  return taken;
}

void ReadyBackward::run() { run(/*keep_graph=*/false, {}); }

void ReadyBackward::run_towards(std::vector<torch::autograd::Edge> targets) {
  run(/*keep_graph=*/true, std::move(targets));
}

void ReadyBackward::run(bool keep_graph, std::vector<torch::autograd::Edge> targets) {
  if (edges_.empty()) return;
  const NoAutocast no_autocast;
  // Elsewhere the engine runs the root on the device that it starts on.
  const at::Tensor start = grads_.front().is_cpu() ? start_on_cpu() : at::zeros({}, grads_.front().options());
  const std::shared_ptr<Source> source(new Source(std::move(edges_), std::move(grads_), start),
                                       torch::autograd::deleteNode);
  edges_.clear();
  grads_.clear();
  torch::autograd::Engine::get_default_engine().execute({{source, 0}}, {start}, keep_graph, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, targets);
}

}  // namespace gpipe::detail
