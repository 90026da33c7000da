#include "gpipe/execute/runner/skip_trial.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/checked_options.h"
#include "gpipe/interpret/executor.h"
#include "gpipe/model/given.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/model/skip_tracer.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe::detail {
namespace {

// Of a message between two stages: the tensors that go from layer to layer, and those that are stashed and not popped yet.
constexpr int kMostTensors = 1024;

// What goes from a stage to the next.
struct Baton {
  Tensors tensors;
  SkipTracer::State skips;
};

// Stashed, and not popped yet.
bool is_open(const SkipTracer::Use& use) { return use.stash_layer >= 0 && use.pop_layer < 0; }

// Text, the stashed tensors, the others.
Tensors encode(const Baton& baton) {
  Fingerprint entries;
  Tensors encoded(1);
  for (const auto& [name, use] : baton.skips.uses) {
    const at::Tensor& tensor = use.stashed.tensor;
    const bool is_changed = is_open(use) && tensor.defined() && version_of(tensor) != use.stashed.version;
    entries.emplace_back("skip", name);
    for (const std::int64_t number :
         {static_cast<std::int64_t>(use.stash_layer), static_cast<std::int64_t>(use.pop_layer), use.bytes,
          static_cast<std::int64_t>(is_changed)}) {
      entries.emplace_back("", std::to_string(number));
    }
    if (is_open(use)) encoded.push_back(tensor);
  }
  for (const std::string& violation : baton.skips.violations) entries.emplace_back("violation", violation);
  encoded[0] = to_tensor(gpipe::encode(entries));
  encoded.insert(encoded.end(), baton.tensors.begin(), baton.tensors.end());
  return encoded;
}

// `stashed` may be left out.
SkipTracer::State decode_skips(const std::string& text, const Tensors& stashed) {
  SkipTracer::State skips;
  std::size_t next = 0;
  const Fingerprint entries = decode_fingerprint(text);
  for (std::size_t index = 0; index < entries.size(); ++index) {
    const auto& [kind, value] = entries[index];
    if (kind == "violation") skips.violations.push_back(value);
    if (kind != "skip") continue;
    SkipTracer::Use& use = skips.uses[value];
    const auto number = [&](std::size_t offset) {
      if (index + offset >= entries.size()) throw InvalidArgument("these are not skips: an entry is missing");
      return decode_number(entries[index + offset].second, -1, std::numeric_limits<std::int64_t>::max());
    };
    use.stash_layer = static_cast<int>(number(1));
    use.pop_layer = static_cast<int>(number(2));
    use.bytes = number(3);
    if (is_open(use) && next < stashed.size()) use.stashed.tensor = stashed[next++];
    const bool is_changed = number(4) != 0;
    use.stashed.version = is_changed ? -1 : (use.stashed.tensor.defined() ? version_of(use.stashed.tensor) : 0);
  }
  return skips;
}

Baton decode(const Tensors& encoded) {
  Baton baton;
  baton.skips = decode_skips(to_text(encoded.at(0)), {encoded.begin() + 1, encoded.end()});
  const auto num_open = std::count_if(baton.skips.uses.begin(), baton.skips.uses.end(),
                                      [](const auto& use) { return is_open(use.second); });
  baton.tensors.assign(encoded.begin() + 1 + num_open, encoded.end());
  return baton;
}

void move(Baton& baton, c10::Device device) {
  for (at::Tensor& tensor : baton.tensors) {
    if (tensor.defined()) tensor = tensor.to(device);
  }
  for (auto& [name, use] : baton.skips.uses) {
    Stashed& stashed = use.stashed;
    if (!stashed.tensor.defined() || stashed.tensor.device() == device) continue;
    const bool is_changed = version_of(stashed.tensor) != stashed.version;
    stashed.tensor = stashed.tensor.to(device);
    stashed.version = is_changed ? -1 : version_of(stashed.tensor);
  }
}

// The layers of a stage, which a trial runs forward once. See Executor.
class TrialStage {
 public:
  using Message = Packet;

  // REQUIRES: all outlive it.
  TrialStage(const Assembly::Parts& parts, int stage, const std::vector<std::string>& names, std::uint64_t seed,
             const MicroBatch& sample)
      : stream_(parts.split.stream(stage)), names_(names), seed_(seed), sample_(sample) {
    for (const ChainLayer& layer : parts.model.layers()) {
      if (parts.cut.stage_of(layer.index) == stage) layers_.push_back(layer);
    }
  }

  void forward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs) {
    Baton baton = inputs.empty() ? start() : decode(inputs.front().tensors);
    if (stream_ != nullptr) move(baton, stream_->device());
    run_layers(baton);
    if (outputs.empty()) {
      result_ = std::move(baton);
      return;
    }
    Packet& packet = outputs.front();
    packet.step = 0;
    packet.micro_batch = micro_batch;
    packet.tensors = encode(baton);
  }
  // A trial has forwards only.
  void recompute(int /*micro_batch*/) {}
  void backward(int /*micro_batch*/, const std::vector<Packet>& /*inputs*/, std::vector<Packet>& /*outputs*/) {}
  void give_tied(std::vector<Packet>& /*outputs*/) {}
  void take_tied(int /*source*/, const Packet& /*input*/) {}
  void settle() {}

  std::string where() const {
    const ChainLayer* layer = at_work_;
    return layer == nullptr ? "" : fmt::format("layer {} ({})", layer->index, layer->name);
  }
  std::string failed_at() const { return where() + failed_input_; }

  // Of the last stage, after its forward.
  const Baton& result() const { return result_; }

 private:
  // A layer may change the tensors in place.
  Baton start() const {
    Baton baton;
    for (const at::Tensor& tensor : sample_.tensors) {
      baton.tensors.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
    }
    return baton;
  }

  void run_layers(Baton& baton) {
    SkipTracer tracer(names_, std::move(baton.skips));
    const SkipScope skip_scope(tracer);
    const at::AutoGradMode grad_mode(false);
    for (const ChainLayer& layer : layers_) {
      const Sandbox sandbox({layer});
      LayerRun run;
      run.seed = seed_;
      run.layer = layer.index;
      run.first_sample = sample_.first_sample;
      const LayerScope scope(run);
      at_work_ = &layer;
      tracer.begin_layer(layer.index, baton.tensors);
      const Given given(baton.tensors);
      try {
        baton.tensors = layer.layer.forward(std::move(baton.tensors));
      } catch (...) {
        if (tracer.failed()) tracer.finish(/*complete=*/false);
        failed_input_ = given.describe(*layer.layer.module);
        throw;
      }
      tracer.end_layer();
    }
    at_work_ = nullptr;
    baton.skips = tracer.state();
  }

  const std::shared_ptr<StageStream> stream_;
  const std::vector<std::string>& names_;
  const std::uint64_t seed_;
  const MicroBatch& sample_;
  std::vector<ChainLayer> layers_;
  std::atomic<const ChainLayer*> at_work_ = nullptr;
  std::string failed_input_;  // what the layer that threw was given
  Baton result_;
};

void rethrow_if_skip_error(const ActionError& error) {
  try {
    std::rethrow_exception(error.cause());
  } catch (const SkipError&) {
    throw;
  } catch (...) {  // NOLINT(bugprone-empty-catch) the action error says it
  }
}

}  // namespace

std::vector<SkipProfile> find_skips(const Assembly::Parts& parts, const PipelineOptions& options, Workers& workers,
                                    const CallerState& caller, const MicroBatch& sample) {
  const std::vector<std::string> names = parts.model.layer_names();
  const auto proven = prove(forwards_of(schedule_for(options, options.num_micro_batches()), 1), {});
  std::vector<std::unique_ptr<TrialStage>> stages;
  std::vector<TrialStage*> pointers;
  for (int stage = 0; stage < parts.cut.num_stages(); ++stage) {
    const bool is_here = parts.split.runs_stage(stage);
    stages.push_back(is_here ? std::make_unique<TrialStage>(parts, stage, names, options.seed(), sample) : nullptr);
    pointers.push_back(stages.back().get());
  }
  FlowTensors most;
  most.direct = kMostTensors;
  Executor<TrialStage> executor(proven, parts.group.connect(*proven, most), std::move(pointers));
  try {
    executor.run(workers, Phase::kForward, [&](const std::function<void()>& work) { caller.run(work); },
                 {options.watchdog_seconds(), options.on_stuck()});
  } catch (const ActionError& error) {
    rethrow_if_skip_error(error);
    throw;
  }
  Tensors found;
  if (stages.back() != nullptr) found = {encode(stages.back()->result()).front()};
  found = parts.group.broadcast(parts.cut.worker_of_stage.back(), std::move(found));
  SkipTracer tracer(names, decode_skips(to_text(found.at(0)), {}));
  return tracer.finish(/*complete=*/true);
}

}  // namespace gpipe::detail
