#include "gpipe/execute/stage.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/autograd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/given.h"
#include "gpipe/model/layer_scope.h"

namespace gpipe {
namespace {

// Stands for the loss among the layers at work.
const ChainLayer& loss_layer() {
  static const ChainLayer layer;
  return layer;
}

std::vector<bool> flags(const Tensors& tensors) {
  std::vector<bool> requires_grad;
  requires_grad.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) requires_grad.push_back(tensor.defined() && tensor.requires_grad());
  return requires_grad;
}

// The slices of a batch count their changes together; then a first layer that works in place seems to change what the graphs
// of other micro-batches have saved. These count by themselves.
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

// A backward runs in the types its forward has chosen: libtorch runs it outside of autocast.
class NoAutocast {
 public:
  NoAutocast() {
    at::autocast::set_enabled(false);
    at::autocast::set_cpu_enabled(false);
  }
  ~NoAutocast() {
    at::autocast::set_enabled(enabled_);
    at::autocast::set_cpu_enabled(cpu_enabled_);
  }

 private:
  const bool enabled_ = at::autocast::is_enabled();
  const bool cpu_enabled_ = at::autocast::is_cpu_enabled();
};

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

void Stage::begin_step(const StepSettings& settings) {
  end_step();
  settings_ = &settings;
  most_input_bytes_ = 0;
  if (modes_.have_changed()) {
    buffers_ = ChangingBuffers(parts_.layers);
    keeper_.forget();
  }
  const std::size_t count = settings.micro_batches.size();
  kept_.resize(count);
  results_.resize(parts_.is_last ? count : 0);
  input_grads_.resize(is_first() ? count : 0);
}

void Stage::end_step() {
  settings_ = nullptr;
  at_work_ = nullptr;
  input_bytes_ = 0;
  given_.clear();
  kept_.clear();
  tied_grads_.clear();
  results_.clear();
  result_requires_grad_.clear();
  output_grads_.clear();
  input_grads_.clear();
}

std::string Stage::where() const {
  const ChainLayer* layer = at_work_;
  if (layer == &loss_layer()) return "the loss";
  return layer == nullptr ? "" : fmt::format("layer {} ({})", layer->index, layer->name);
}

std::string Stage::failed_at() const {
  const std::string layer = where();
  return layer.empty() ? layer : layer + given_;
}

void Stage::follow_caller() const {
  if (parts_.stream != nullptr) parts_.stream->follow_caller();
}

void Stage::lead_caller() const {
  if (parts_.stream != nullptr) parts_.stream->lead_caller();
}

// To the stage's device. On CPU they stay where they are: nothing is copied.
void Stage::bring_here(Tensors& tensors) const {
  if (parts_.stream == nullptr) return;
  const Tensors given = tensors;
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    at::Tensor& tensor = tensors[index];
    if (!tensor.defined()) continue;
    const std::size_t first = first_same(given, index);
    if (first < index) {
      tensor = tensors[first];
      continue;
    }
    // The sender's memory must not be used again before this stream has read it.
    if (!tensor.device().is_cpu() && parts_.stream->stream()) tensor.record_stream(*parts_.stream->stream());
    if (tensor.device() != parts_.stream->device()) tensor = tensor.to(parts_.stream->device(), /*non_blocking=*/true);
  }
}

// Checks a message, and takes over its tensors.
void Stage::receive(Packet& packet, int micro_batch) const {
  if (packet.step != settings_->step || packet.micro_batch != micro_batch) {
    throw Error(
        fmt::format("received micro-batch {} of step {}, expected micro-batch {} of step {}; please report this",
                    packet.micro_batch, packet.step, micro_batch, settings_->step));
  }
  if (parts_.stream != nullptr) parts_.stream->wait(packet.ready);
  const std::vector<std::int64_t> sent = versions_of(packet.tensors);
  bring_here(packet.tensors);
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

Stage::Entries Stage::gather(int micro_batch, std::vector<Packet> inputs) const {
  Entries entries;
  std::size_t next = 0;
  if (is_first()) {
    entries.tensors = with_own_versions(settings_->micro_batches[micro_batch].tensors);
    bring_here(entries.tensors);
    entries.requires_grad = settings_->input_requires_grad;
  } else {
    receive(inputs.front(), micro_batch);
    entries.tensors = std::move(inputs.front().tensors);
    entries.requires_grad = std::move(inputs.front().requires_grad);
    ++next;
  }
  entries.num_inputs = entries.tensors.size();
  for (; next < inputs.size(); ++next) {
    Packet& packet = inputs[next];
    receive(packet, micro_batch);
    std::move(packet.tensors.begin(), packet.tensors.end(), std::back_inserter(entries.tensors));
    entries.requires_grad.insert(entries.requires_grad.end(), packet.requires_grad.begin(), packet.requires_grad.end());
    entries.versions.insert(entries.versions.end(), packet.versions.begin(), packet.versions.end());
  }
  return entries;
}

void Stage::run_layers(int micro_batch, Tensors& tensors, bool recomputing) {
  LayerRun run;
  run.seed = settings_->seed;
  run.step = settings_->step;
  run.micro_batch = micro_batch;
  run.first_sample = settings_->micro_batches[micro_batch].first_sample;
  run.recomputing = recomputing;
  for (const ChainLayer& layer : parts_.layers) {
    run.layer = layer.index;
    at_work_ = &layer;
    const LayerScope scope(run);
    const Given given(tensors);
    try {
      tensors = layer.layer.forward(std::move(tensors));
    } catch (...) {
      given_ = given.describe(*layer.layer.module);
      throw;
    }
  }
  at_work_ = nullptr;
  if (!has_loss()) return;
  ++run.layer;
  at_work_ = &loss_layer();
  const LayerScope scope(run);
  tensors = {settings_->loss(micro_batch, tensors)};
  at_work_ = nullptr;
}

Stage::Exits Stage::run(int micro_batch, const Entries& entries, bool recomputing) {
  SkipMap store;
  NoSkipsYet no_skips_yet;
  std::size_t next = entries.num_inputs;
  for (const auto& names : parts_.skips_in) {
    for (const std::string& name : names) {
      store.stashed[name] = {entries.tensors[next], entries.versions[next - entries.num_inputs]};
      ++next;
    }
  }
  const SkipScope scope(settings_->knows_skips ? static_cast<SkipStore&>(store) : no_skips_yet);
  Exits exits;
  exits.tensors = slice(entries.tensors, 0, entries.num_inputs);
  run_layers(micro_batch, exits.tensors, recomputing);
  exits.num_outputs = exits.tensors.size();
  for (const auto& names : parts_.skips_out) {
    for (const std::string& name : names) {
      Stashed stashed = store.take(name);
      exits.tensors.push_back(std::move(stashed.tensor));
      exits.versions.push_back(stashed.version);
    }
  }
  if (!store.stashed.empty()) {
    throw SkipError(fmt::format(
        "\"{}\" is stashed, but not popped, unlike in the first batch; every forward must use the same skips",
        store.stashed.begin()->first));
  }
  return exits;
}

void Stage::keep_result(int micro_batch, const Tensors& tensors, const std::vector<bool>& requires_grad) {
  results_[micro_batch] = detached(tensors);
  result_requires_grad_.resize(tensors.size());
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    if (requires_grad[index]) result_requires_grad_[index] = true;
  }
}

void Stage::send(int micro_batch, const Exits& exits, std::vector<Packet>& outputs) {
  const std::vector<bool> requires_grad = flags(exits.tensors);
  std::size_t next = exits.num_outputs;
  std::size_t flow = 0;
  if (parts_.is_last) {
    keep_result(micro_batch, slice(exits.tensors, 0, next), requires_grad);
  } else {
    outputs[flow] = packet(micro_batch, detached(slice(exits.tensors, 0, next)));
    outputs[flow++].requires_grad = slice(requires_grad, 0, next);
  }
  for (const auto& names : parts_.skips_out) {
    outputs[flow] = packet(micro_batch, detached(slice(exits.tensors, next, names.size())));
    outputs[flow].requires_grad = slice(requires_grad, next, names.size());
    outputs[flow++].versions = slice(exits.versions, next - exits.num_outputs, names.size());
    next += names.size();
  }
}

void Stage::forward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs) {
  const AtHome home(parts_);
  Entries entries = gather(micro_batch, std::move(inputs));
  if (!settings_->with_grad) {
    send(micro_batch, run(micro_batch, entries, false), outputs);
    return;
  }
  Kept& kept = kept_[micro_batch];
  if (!parts_.recomputed[micro_batch]) {
    kept.boundary = Boundary::enter(entries.tensors, entries.requires_grad);
    const Exits exits = run(micro_batch, entries, false);
    kept.roots = Roots(exits.tensors);
    send(micro_batch, exits, outputs);
    return;
  }
  // With a graph, though it is dropped at once: it tells which outputs need a gradient, and the recompute will need the same
  // memory.
  InputKeeper::Before before = keeper_.copy(entries.tensors);
  kept.buffers = buffers_.snapshot();
  Entries entering = entries;
  entering.tensors = detached(entries.tensors);  // the entries themselves stay outside of the graph
  Boundary::enter(entering.tensors, entering.requires_grad);
  send(micro_batch, run(micro_batch, entering, false), outputs);
  buffers_.learn(kept.buffers);
  const std::vector<bool> changed = keeper_.put_back(entries.tensors, std::move(before));
  for (std::size_t index = entries.num_inputs; index < changed.size(); ++index) {
    if (changed[index]) entries.versions[index - entries.num_inputs] = version_of(entries.tensors[index]);
  }
  kept.versions = versions_of(entries.tensors);
  if (parts_.account != nullptr && !is_first()) {
    kept.input_bytes = bytes_of(entries.tensors);
    input_bytes_ += kept.input_bytes;
    most_input_bytes_ = std::max(most_input_bytes_, input_bytes_);
  }
  kept.entries = std::move(entries);
}

void Stage::recompute(int micro_batch) {
  const AtHome home(parts_);
  Kept& kept = kept_[micro_batch];
  const Entries entries = std::move(kept.entries);
  keeper_.check_unchanged(entries.tensors, kept.versions);
  const ChangingBuffers::Rewind rewind(buffers_, kept.buffers);
  Entries entering = entries;
  entering.tensors = detached(entries.tensors);
  kept.boundary = Boundary::enter(entering.tensors, entering.requires_grad);
  kept.roots = Roots(run(micro_batch, entering, true).tensors);
  keeper_.check_unchanged(entries.tensors, kept.versions);
}

void Stage::backward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs) {
  const AtHome home(parts_);
  Kept kept = std::exchange(kept_[micro_batch], {});
  Tensors grads;
  if (has_loss()) {
    grads.push_back(at::ones_like(results_[micro_batch].front()));
  } else if (parts_.is_last) {
    grads = std::move(output_grads_[micro_batch]);
  }
  for (Packet& input : inputs) {
    receive(input, micro_batch);
    std::move(input.tensors.begin(), input.tensors.end(), std::back_inserter(grads));
  }
  {
    const NoAutocast no_autocast;
    kept.roots.backward(std::move(grads));
  }
  input_bytes_ -= kept.input_bytes;
  Tensors entry_grads = kept.boundary->take_grads();
  std::size_t next = entry_grads.size();
  for (std::size_t flow = parts_.skips_in.size(); flow-- > 0;) {
    const std::size_t count = parts_.skips_in[flow].size();
    next -= count;
    outputs[flow + (is_first() ? 0 : 1)] = packet(micro_batch, slice(entry_grads, next, count));
  }
  entry_grads.resize(next);
  if (is_first()) {
    input_grads_[micro_batch] = std::move(entry_grads);
  } else {
    outputs.front() = packet(micro_batch, std::move(entry_grads));
  }
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

}  // namespace gpipe
