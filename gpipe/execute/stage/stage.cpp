#include "gpipe/execute/stage/stage.h"

#include <fmt/format.h>
#include <torch/autograd.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "gpipe/error.h"
#include "gpipe/model/boundary.h"
#include "gpipe/model/skip_store.h"

namespace gpipe::detail {
namespace {

// The slices of a batch count their changes together; then a first layer that works in place seems to change what the
// graphs of other micro-batches have saved. These count by themselves.
Tensors with_own_versions(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.defined() ? tensor.variable_data() : tensor);
  return result;
}

template <typename Value>
std::vector<Value> slice(const std::vector<Value>& values, std::size_t first, std::size_t count) {
  return {values.begin() + static_cast<std::ptrdiff_t>(first),
          values.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

// While it lives, the thread works on the stage's device, in its stream, and on its account.
class AtHome {
 public:
  explicit AtHome(const StageParts& parts) : memory_(parts.account) {
    if (parts.stream != nullptr) stream_.emplace(*parts.stream);
  }

 private:
  const MemoryScope memory_;
  std::optional<StageStream::Guard> stream_;
};

}  // namespace

Stage::Stage(StageParts parts) : parts_(std::move(parts)), layers_(parts_) {}

void Stage::begin_step(const StepSettings& settings) {
  end_step();
  settings_ = &settings;
  layers_.begin_step(settings);
  most_input_bytes_ = 0;
  has_backward_begun_ = false;
  num_last_parts_ = 0;
  const std::size_t count = settings.micro_batches.size();
  held_.resize(count);
  results_.outputs.resize(parts_.is_last ? count : 0);
  results_.input_grads.resize(is_first() ? count : 0);
}

void Stage::end_step() {
  settings_ = nullptr;
  layers_.end_step();
  input_bytes_ = 0;
  earlier_gradients_.put_back();
  held_.clear();
  tied_grads_.clear();
  results_ = {};
}

// To the stage's device. On CPU they stay where they are: nothing is copied. `ready_on` gives the point after which
// what is on a device may be read.
template <typename ReadyOn>
void Stage::bring_here(Tensors& tensors, const ReadyOn& ready_on) const {
  if (parts_.stream == nullptr) return;
  const Tensors given = tensors;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    at::Tensor& tensor = tensors[index];
    if (!tensor.defined()) continue;
    const std::size_t first = first_same(given, index);
    tensor = first < index ? tensors[first] : parts_.stream->bring(tensor, ready_on(tensor.device()));
  }
}

void Stage::bring_given(Tensors& tensors) const {
  bring_here(tensors, [&](c10::Device device) { return settings_->given.on(device); });
}

// Checks a message, and takes over its tensors.
void Stage::receive(Packet& packet, int micro_batch) const {
  if (packet.step != settings_->step || packet.micro_batch != micro_batch) {
    throw Error(
        fmt::format("received micro-batch {} of step {}, expected micro-batch {} of step {}; please report this",
                    packet.micro_batch, packet.step, micro_batch, settings_->step));
  }
  const std::vector<std::int64_t> sent = versions_of(packet.tensors);
  bring_here(packet.tensors, [&](c10::Device) { return packet.ready; });
  for (std::size_t index = 0; index < packet.versions.size(); ++index) {
    // A copy on this device counts from the start.
    const at::Tensor& tensor = packet.tensors[index];
    if (tensor.defined() && sent[index] == packet.versions[index]) packet.versions[index] = version_of(tensor);
  }
  for (const at::Tensor& tensor : packet.tensors) {
    if (parts_.account != nullptr && tensor.defined()) transfer(tensor, parts_.account);
  }
}

Packet Stage::packet(int micro_batch, Tensors tensors) const {
  Packet packet;
  packet.step = settings_->step;
  packet.micro_batch = micro_batch;
  packet.tensors = std::move(tensors);
  // Under way it belongs to neither stage: else a stage's peak would depend on when the next one comes to receive.
  for (const at::Tensor& tensor : packet.tensors) {
    if (parts_.account != nullptr && tensor.defined()) transfer(tensor, nullptr);
  }
  if (parts_.stream != nullptr) packet.ready = parts_.stream->record();
  return packet;
}

Crossing Stage::gather(int micro_batch, std::vector<Packet> inputs) const {
  Crossing entries;
  std::size_t next = 0;
  if (is_first()) {
    entries.tensors = with_own_versions(settings_->micro_batches[micro_batch].tensors);
    bring_given(entries.tensors);
    entries.requires_grad = settings_->input_requires_grad;
  } else {
    receive(inputs.front(), micro_batch);
    entries.tensors = std::move(inputs.front().tensors);
    entries.requires_grad = std::move(inputs.front().requires_grad);
    ++next;
  }
  entries.num_direct = entries.tensors.size();
  for (; next < inputs.size(); ++next) {
    Packet& packet = inputs[next];
    receive(packet, micro_batch);
    std::move(packet.tensors.begin(), packet.tensors.end(), std::back_inserter(entries.tensors));
    entries.requires_grad.insert(entries.requires_grad.end(), packet.requires_grad.begin(), packet.requires_grad.end());
    entries.versions.insert(entries.versions.end(), packet.versions.begin(), packet.versions.end());
  }
  return entries;
}

void Stage::keep_result(int micro_batch, const Tensors& tensors, const std::vector<bool>& requires_grad) {
  results_.outputs[micro_batch] = detached(tensors);
  // Outputs without a graph are the caller's from now on: what the batch adds up to is no concern of the stage.
  for (const at::Tensor& result : results_.outputs[micro_batch]) {
    if (parts_.account != nullptr && !settings_->with_grad && result.defined()) transfer(result, nullptr);
  }
  results_.requires_grad.resize(tensors.size());
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    if (requires_grad[index]) results_.requires_grad[index] = true;
  }
}

void Stage::send(int micro_batch, const Crossing& exits, std::vector<Packet>& outputs) {
  std::size_t next = exits.num_direct;
  std::size_t flow = 0;
  if (parts_.is_last) {
    keep_result(micro_batch, slice(exits.tensors, 0, next), exits.requires_grad);
  } else {
    outputs[flow] = packet(micro_batch, detached(slice(exits.tensors, 0, next)));
    outputs[flow++].requires_grad = slice(exits.requires_grad, 0, next);
  }
  for (const auto& names : parts_.skips_out) {
    outputs[flow] = packet(micro_batch, detached(slice(exits.tensors, next, names.size())));
    outputs[flow].requires_grad = slice(exits.requires_grad, next, names.size());
    outputs[flow++].versions = slice(exits.versions, next - exits.num_direct, names.size());
    next += names.size();
  }
}

void Stage::forward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs) {
  const AtHome home(parts_);
  Crossing entries = gather(micro_batch, std::move(inputs));
  if (!settings_->with_grad) {
    send(micro_batch, layers_.forward(micro_batch, std::move(entries)), outputs);
    return;
  }
  Held& held = held_[micro_batch];
  if (!parts_.recomputed[micro_batch]) {
    send(micro_batch, layers_.forward_with_graph(micro_batch, std::move(entries), held.graph), outputs);
    return;
  }
  send(micro_batch, layers_.forward_dropped(micro_batch, std::move(entries), held.graph), outputs);
  if (parts_.account != nullptr && !is_first()) {
    held.input_bytes = bytes_of(held.graph.dropped.entries.tensors);
    input_bytes_ += held.input_bytes;
    most_input_bytes_ = std::max(most_input_bytes_, input_bytes_);
  }
}

void Stage::recompute(int micro_batch) {
  const AtHome home(parts_);
  layers_.recompute(micro_batch, held_[micro_batch].graph);
}

bool Stage::loss_has_weights(const std::vector<Packet>& inputs) const {
  if (has_loss()) return settings_->has_weights && settings_->has_weights();
  return !inputs.empty() && inputs.front().loss_has_weights;
}

void Stage::begin_backward(bool has_weights) {
  if (std::exchange(has_backward_begun_, true)) return;
  if (has_weights) earlier_gradients_.set_aside(parts_.layers);
  own_gradients_.watch(parts_.layers);
  if (settings_->on_first_backward) settings_->on_first_backward(parts_.index);
}

void Stage::begin_last_part() {
  if (++num_last_parts_ == held_.size() && settings_->on_last_backward) settings_->on_last_backward(parts_.index);
}

Tensors Stage::gather_grads(int micro_batch, std::vector<Packet> inputs) {
  Tensors grads;
  if (has_loss()) {
    grads.push_back(at::ones_like(results_.outputs[micro_batch].front()));
  } else if (parts_.is_last) {
    grads = std::move(results_.output_grads[micro_batch]);
    bring_given(grads);
  }
  for (Packet& input : inputs) {
    receive(input, micro_batch);
    std::move(input.tensors.begin(), input.tensors.end(), std::back_inserter(grads));
  }
  return grads;
}

void Stage::send_grads(int micro_batch, Tensors entry_grads, std::vector<Packet>& outputs) {
  std::size_t next = entry_grads.size();
  for (std::size_t flow = parts_.skips_in.size(); flow-- > 0;) {
    const std::size_t count = parts_.skips_in[flow].size();
    next -= count;
    outputs[flow + (is_first() ? 0 : 1)] = packet(micro_batch, slice(entry_grads, next, count));
  }
  entry_grads.resize(next);
  if (is_first()) {
    results_.input_grads[micro_batch] = std::move(entry_grads);
  } else {
    outputs.front() = packet(micro_batch, std::move(entry_grads));
  }
}

template <typename Run>
void Stage::run_backward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs, const Run& run) {
  const bool has_weights = loss_has_weights(inputs);
  begin_backward(has_weights);
  Tensors grads = gather_grads(micro_batch, std::move(inputs));
  Tensors entry_grads = run(std::exchange(held_[micro_batch].graph, {}), std::move(grads));
  input_bytes_ -= std::exchange(held_[micro_batch].input_bytes, 0);
  send_grads(micro_batch, std::move(entry_grads), outputs);
  for (Packet& output : outputs) output.loss_has_weights = has_weights;
}

void Stage::backward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs) {
  const AtHome home(parts_);
  run_backward(micro_batch, std::move(inputs), outputs, [&](StageLayers::Graph graph, Tensors grads) {
    begin_last_part();
    return layers_.backward(micro_batch, std::move(graph), std::move(grads));
  });
}

void Stage::input_grad(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs) {
  const AtHome home(parts_);
  run_backward(micro_batch, std::move(inputs), outputs, [&](StageLayers::Graph graph, Tensors grads) {
    return layers_.input_grad(micro_batch, std::move(graph), std::move(grads), held_[micro_batch].deferred);
  });
}

void Stage::weight_grad(int micro_batch) {
  const AtHome home(parts_);
  begin_last_part();
  layers_.weight_grad(micro_batch, std::exchange(held_[micro_batch].deferred, {}));
}

void Stage::give_tied(std::vector<Packet>& outputs) {
  const AtHome home(parts_);
  for (std::size_t flow = 0; flow < outputs.size(); ++flow) {
    Tensors grads;
    for (const at::Tensor& weight : parts_.ties_out[flow]) grads.push_back(std::exchange(weight.mutable_grad(), {}));
    outputs[flow] = packet(0, std::move(grads));
  }
}

void Stage::take_tied(int source, Packet input) {
  const AtHome home(parts_);
  receive(input, 0);
  tied_grads_[source] = std::move(input.tensors);
}

void Stage::settle() {
  const AtHome home(parts_);
  for (const OwnedTie& tie : parts_.ties_owned) {
    at::Tensor& sum = tie.weight.mutable_grad();
    for (const OwnedTie::Part& part : tie.parts) {
      at::Tensor grad =
          part.local.defined() ? std::exchange(part.local.mutable_grad(), {}) : tied_grads_.at(part.source)[part.index];
      if (!grad.defined()) continue;
      const at::NoGradGuard no_grad;
      sum = sum.defined() ? sum.add_(grad) : grad;
    }
  }
}

void Stage::update() {
  if (!settings_->update || earlier_gradients_.are_aside()) return;
  const AtHome home(parts_);
  settings_->update(parts_.index);
}

}  // namespace gpipe::detail
