#include "gpipe/model/layer_meter.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "gpipe/model/split_backward.h"
#include "gpipe/os/thread_clock.h"

namespace gpipe::detail {
namespace {

// Puts zeros in the place of the gradients; the destructor puts the gradients back.
class GradientsAside {
 public:
  explicit GradientsAside(const Tensors& parameters) {
    for (const at::Tensor& parameter : parameters) {
      if (!parameter.requires_grad()) continue;
      parameters_.push_back(parameter);
      grads_.push_back(std::exchange(parameter.mutable_grad(), at::zeros_like(parameter)));
    }
  }
  ~GradientsAside() {
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      parameters_[index].mutable_grad() = std::move(grads_[index]);
    }
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

 private:
  Tensors parameters_;
  Tensors grads_;
};

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

const void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Watches the memory of tensors without keeping it.
class Watched {
 public:
  explicit Watched(const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) {
      // Views count what they show: that is what a copy of them, which goes on to the next layer, would take.
      uses.push_back({bytes_of({tensor}), false, -1});
      memory.push_back(memory_of(tensor));
      storages_.emplace_back();
      if (memory.back() != nullptr) storages_.back().emplace(tensor.storage().getWeakStorageImpl());
    }
  }
  // These are what `inputs` have become.
  void note_same_memory(const Watched& inputs) {
    for (std::size_t index = 0; index < uses.size(); ++index) {
      const auto same = std::find(inputs.memory.begin(), inputs.memory.end(), memory[index]);
      if (same == inputs.memory.end() || memory[index] == nullptr) continue;
      uses[index].same_input = static_cast<int>(same - inputs.memory.begin());
    }
  }
  void note_what_is_kept() {
    for (std::size_t index = 0; index < uses.size(); ++index) {
      uses[index].kept = storages_[index] && !storages_[index]->expired();
    }
  }

  std::vector<TensorUse> uses;
  std::vector<const void*> memory;

 private:
  std::vector<std::optional<WeakStorage>> storages_;
};

std::vector<bool> flags(const Tensors& tensors) {
  std::vector<bool> result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.defined() && tensor.requires_grad() && at::GradMode::is_enabled());
  }
  return result;
}

Tensors ones_like(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.defined() && tensor.requires_grad() ? at::ones_like(tensor) : at::Tensor());
  }
  return result;
}

// Where the gradients of tensors arrive. To be taken before a layer changes them in place: they are others then.
torch::autograd::edge_list edges_of(const Tensors& tensors) {
  torch::autograd::edge_list edges;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  }
  return edges;
}

// To the inputs alone, whose edges are `ends`; the graph stays.
double input_grad_seconds(const torch::autograd::edge_list& ends, const Tensors& roots,
                          const std::function<double()>& now) {
  const torch::autograd::edge_list starts = edges_of(roots);
  if (starts.empty() || ends.empty()) return 0;
  Tensors grads = ones_like(roots);
  grads.erase(std::remove_if(grads.begin(), grads.end(), [](const at::Tensor& grad) { return !grad.defined(); }),
              grads.end());
  const double start = now();
  torch::autograd::Engine::get_default_engine().execute(starts, grads, /*keep_graph=*/true, /*create_graph=*/false,
                                                        /*accumulate_grad=*/false, ends);
  return now() - start;
}

}  // namespace

void LayerMeter::reset_peak() const {
  if (account != nullptr) account->reset_peak();
}

double LayerMeter::now() const { return clock ? clock() : thread_seconds(); }

LayerMeasure LayerMeter::run(const MeteredForward& forward, const MoreRoots& more_roots, Tensors inputs,
                             const Tensors& parameters) const {
  const GradientsAside aside(parameters);
  const MemoryScope scope(account);
  LayerMeasure measure;

  const std::int64_t before = live_bytes();
  const std::vector<bool> requires_grad = flags(inputs);
  Tensors entering = detached(inputs);
  for (at::Tensor& tensor : entering) {
    if (tensor.defined()) tensor = tensor.clone();  // the layer may change it in place
  }
  inputs.clear();
  std::shared_ptr<Boundary> boundary = Boundary::enter(entering, requires_grad);
  Watched watched_inputs(entering);
  const torch::autograd::edge_list input_edges = with_input_grad ? edges_of(entering) : torch::autograd::edge_list();

  reset_peak();
  const double start = now();
  Tensors outputs = forward(std::move(entering));
  measure.seconds.forward = now() - start;
  measure.bytes.forward_working = peak_bytes() - before;

  if (at_backward) at_backward();
  {
    const MemoryScope elsewhere(nullptr);
    for (const at::Tensor& output : outputs) {
      measure.outputs.push_back(output.defined() ? output.detach().clone() : output);
      if (output.defined()) measure.outputs.back().set_requires_grad(output.requires_grad());
    }
  }
  Watched watched_outputs(outputs);
  watched_outputs.note_same_memory(watched_inputs);
  for (const at::Tensor& tensor : more_roots ? more_roots() : Tensors()) outputs.push_back(tensor);
  if (!input_edges.empty()) {
    measure.seconds.input_grad = input_grad_seconds(input_edges, outputs, [this] { return now(); });
  }
  Tensors grads = ones_like(outputs);
  const std::int64_t grad_bytes = bytes_of(grads);
  LayerGraph graph{std::move(boundary), Roots(outputs)};
  outputs.clear();
  ReadyBackward backward;
  if (deferred_weights) {
    reset_peak();
    backward = detail::SplitBackward(*deferred_weights).run_inputs(graph, std::move(grads));
    measure.bytes.input_grad_working = peak_bytes() - before;
    graph.boundary->take_grads();
  } else {
    backward = graph.roots.backward_from(std::move(grads));
  }
  watched_inputs.note_what_is_kept();
  watched_outputs.note_what_is_kept();
  measure.bytes.inputs = watched_inputs.uses;
  measure.bytes.outputs = watched_outputs.uses;
  const std::int64_t at_backward_bytes = live_bytes();

  reset_peak();
  const double middle = now();
  backward.run();
  measure.seconds.backward = now() - middle;
  measure.bytes.backward_working = peak_bytes() - before;
  // Some of what a layer makes stays, such as the sums of a batch norm: it is not deferred.
  measure.bytes.kept = at_backward_bytes - (deferred_weights ? live_bytes() : before + grad_bytes);
  return measure;
}

}  // namespace gpipe::detail
