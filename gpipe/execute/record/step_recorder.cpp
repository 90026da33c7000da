#include "gpipe/execute/record/step_recorder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <chrono>
#include <thread>
#include <utility>

#include "gpipe/execute/record/tensor_digest.h"
#include "gpipe/model/skip_tracer.h"
#include "gpipe/recording/likely_cause.h"

namespace gpipe::detail {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Tells what arrives at one output of a node.
class ArrivalHook : public torch::autograd::FunctionPreHook {
 public:
  using Tell = std::function<void(const at::Tensor& grad)>;
  ArrivalHook(std::size_t output, Tell tell) : output_(output), tell_(std::move(tell)) {}
  variable_list operator()(const variable_list& grads) override {
    if (output_ < grads.size() && grads[output_].defined()) tell_(grads[output_]);
    return grads;
  }

 private:
  const std::size_t output_;
  const Tell tell_;
};

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.defined() ? tensor.detach().clone().requires_grad_(tensor.requires_grad()) : tensor);
  }
  return copies;
}

}  // namespace

StepRecorder::StepRecorder(const RecordSettings& settings, std::int64_t step, const RecordedLayers& layers,
                           const Tensors& inputs, std::function<void(Recording recorded)> take)
    : settings_(settings), step_(step), take_(std::move(take)) {
  const auto add_known = [this](const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) known_leaves_.insert(tensor.unsafeGetTensorImpl());
    }
  };
  for (const ChainLayer& layer : layers.layers) add_known(layer.layer.module->parameters());
  add_known(layers.known_leaves);
  add_known(inputs);
}

void StepRecorder::add(TensorRecord record, const Tensors& tensors, bool with_norm) {
  record.step = step_;
  record.hash = hash_of(tensors);
  record.shape = shapes_of(tensors);
  if (with_norm) record.norm = norm_of(tensors);
  const std::lock_guard<std::mutex> lock(mutex_);
  recording_.tensors.push_back(std::move(record));
}

void StepRecorder::add(const LossRecord& loss) {
  const std::lock_guard<std::mutex> lock(mutex_);
  recording_.losses.push_back(loss);
  recording_.losses.back().step = step_;
}

void StepRecorder::entered(int stage, const LayerRun& run, const Tensors& tensors) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    seen_nodes_[stage].clear();
  }
  if (run.recomputing) return;
  TensorRecord record;
  record.kind = RecordKind::kEntered;
  record.stage = stage;
  record.layer = run.layer;
  record.micro_batch = run.micro_batch;
  add(std::move(record), tensors);
}

void StepRecorder::left(int stage, const LayerRun& run, const Tensors& tensors) {
  TensorRecord record;
  record.kind = run.recomputing ? RecordKind::kRecomputed : RecordKind::kLeft;
  record.stage = stage;
  record.layer = run.layer;
  record.micro_batch = run.micro_batch;
  add(std::move(record), tensors);
  if (settings_.with_arrivals) note_arrival(stage, run, tensors);
  if (step_ == 0) find_strays(stage, run, tensors);
}

void StepRecorder::note_arrival(int stage, const LayerRun& run, const Tensors& tensors) {
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    const at::Tensor& tensor = tensors[index];
    if (!tensor.defined() || tensor.grad_fn() == nullptr) continue;
    TensorRecord record;
    record.kind = RecordKind::kArrived;
    record.stage = stage;
    record.layer = run.layer;
    record.micro_batch = run.micro_batch;
    if (index > 0) record.name = fmt::format("output {} of layer {}", index, run.layer);
    tensor.grad_fn()->add_pre_hook(std::make_unique<ArrivalHook>(
        tensor.output_nr(),
        [self = shared_from_this(), record](const at::Tensor& grad) { self->add(record, {grad}); }));
  }
}

void StepRecorder::find_strays(int stage, const LayerRun& run, const Tensors& tensors) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!searched_layers_.insert(run.layer).second) return;
  std::unordered_set<const Node*>& seen = seen_nodes_[stage];
  std::vector<Node*> waiting;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) visit(tensor.grad_fn().get());
  }
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    if (auto* leaf = dynamic_cast<AccumulateGrad*>(node); leaf != nullptr) {
      if (known_leaves_.count(leaf->variable.unsafeGetTensorImpl()) == 0) {
        recording_.strays.push_back({run.layer, shapes_of({leaf->variable})});
      }
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
}

void StepRecorder::probe(const LayerRun& run, const Tensors& inputs, const Forward& forward) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (settings_.probed_layer != run.layer || run.recomputing || std::exchange(is_probed_, true)) return;
  }
  Probe probe;
  probe.layer = run.layer;
  try {
    for (int call = 0; call < kProbeCalls; ++call) {
      if (call == kProbeCalls / 2) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
      // What it stashes stays here, and what it pops is a stand-in.
      SkipTracer skips(std::vector<std::string>(static_cast<std::size_t>(run.layer) + 1));
      skips.begin_layer(run.layer, inputs);
      const SkipScope skip_scope(skips);
      const LayerScope scope(run);
      const Tensors outputs = forward(copies_of(inputs));
      probe.calls.push_back({hash_of(outputs), sum_of(outputs)});
      probe.has_own_generator |= LayerScope::has_drawn_elsewhere();
    }
  } catch (const std::exception& error) {
    probe.problem = error.what();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  recording_.probes.push_back(std::move(probe));
}

void StepRecorder::finish(const at::Tensor& loss, const Tensors& input_grads, const RecordedLayers& layers) {
  if (loss.defined()) {
    TensorRecord record;
    record.kind = RecordKind::kLoss;
    add(std::move(record), {loss}, /*with_norm=*/true);
  }
  for (std::size_t index = 0; index < input_grads.size(); ++index) {
    if (!input_grads[index].defined()) continue;
    TensorRecord record;
    record.kind = RecordKind::kGradient;
    record.name = fmt::format("input {}", index);
    add(std::move(record), {input_grads[index]}, /*with_norm=*/true);
  }
  for (const ChainLayer& layer : layers.layers) {
    const auto add_named = [&](RecordKind kind, const std::string& name, const at::Tensor& tensor) {
      TensorRecord record;
      record.kind = kind;
      record.stage = layers.stage_of(layer.index);
      record.layer = layer.index;
      record.name = layer.scope + name;
      add(std::move(record), {tensor}, /*with_norm=*/true);
    };
    for (const auto& item : layer.layer.module->named_parameters()) {
      add_named(RecordKind::kGradient, item.key(), item.value().grad());
    }
    for (const auto& item : layer.layer.module->named_buffers()) {
      add_named(RecordKind::kBuffer, item.key(), item.value());
    }
  }
  Recording recorded;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    recorded = std::exchange(recording_, {});
  }
  recorded.num_steps = step_ + 1;
  take_(std::move(recorded));
}

std::vector<TensorRecord> weights_of(const RecordedLayers& layers, std::int64_t step) {
  std::vector<TensorRecord> records;
  for (const ChainLayer& layer : layers.layers) {
    for (const auto& item : layer.layer.module->named_parameters()) {
      TensorRecord record;
      record.kind = RecordKind::kWeight;
      record.step = step;
      record.stage = layers.stage_of(layer.index);
      record.layer = layer.index;
      record.name = layer.scope + item.key();
      record.hash = hash_of({item.value()});
      record.shape = shapes_of({item.value()});
      record.norm = norm_of({item.value()});
      records.push_back(std::move(record));
    }
  }
  return records;
}

}  // namespace gpipe::detail
