#include "gpipe/execute/skip_trial.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/action_error.h"
#include "gpipe/model/given.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/model/skip_tracer.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {
namespace {

// What goes from a stage to the next.
struct Baton {
  Tensors tensors;
  SkipTracer::State skips;
};

// Whether a later stage pops it.
bool is_open(const SkipTracer::Use& use) { return use.pop_layer < 0 && use.stashed.tensor.defined(); }

detail::WireRecord to_record(const Baton& baton) {
  std::vector<std::string> names;
  std::vector<int> stash_layers;
  std::vector<int> pop_layers;
  std::vector<std::int64_t> bytes;
  std::vector<bool> are_changed;
  Tensors stashed;
  for (const auto& [name, use] : baton.skips.uses) {
    names.push_back(name);
    stash_layers.push_back(use.stash_layer);
    pop_layers.push_back(use.pop_layer);
    bytes.push_back(use.bytes);
    are_changed.push_back(is_open(use) && version_of(use.stashed.tensor) != use.stashed.version);
    stashed.push_back(is_open(use) ? use.stashed.tensor : at::Tensor());
  }
  detail::WireRecord record;
  record.add("skips", std::move(names));
  record.add("stash_layers", stash_layers);
  record.add("pop_layers", pop_layers);
  record.add("bytes", bytes);
  record.add("are_changed", are_changed);
  record.add("stashed", stashed);
  record.add("violations", baton.skips.violations);
  record.add("tensors", baton.tensors);
  return record;
}

Baton read_baton(const detail::WireRecord& record, int num_layers) {
  detail::WireReader reader(record, "these are not skips");
  const std::size_t count = reader.num_rows({"skips", "stash_layers", "pop_layers", "bytes", "are_changed", "stashed"});
  const std::vector<std::string>& names = reader.texts("skips");
  const std::vector<int> stash_layers = reader.integers<int>("stash_layers", -1, num_layers - 1);
  const std::vector<int> pop_layers = reader.integers<int>("pop_layers", -1, num_layers - 1);
  const std::vector<std::int64_t> bytes = reader.integers<std::int64_t>("bytes", 0);
  const std::vector<bool> are_changed = reader.flags("are_changed");
  const Tensors stashed = reader.tensors("stashed");
  Baton baton;
  for (std::size_t index = 0; index < count; ++index) {
    SkipTracer::Use& use = baton.skips.uses[names[index]];
    use.stash_layer = stash_layers[index];
    use.pop_layer = pop_layers[index];
    use.bytes = bytes[index];
    use.stashed.tensor = stashed[index];
    use.stashed.version = are_changed[index] ? -1 : (stashed[index].defined() ? version_of(stashed[index]) : 0);
  }
  baton.skips.violations = reader.texts("violations");
  baton.tensors = reader.tensors("tensors");
  reader.finish();
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

class Trial {
 public:
  Trial(const TrialModel& model, const Ranks& ranks) : model_(model), ranks_(ranks) {
    for (const ChainLayer& layer : model.layers) names_.push_back(layer.name);
  }

  // The result on the rank of the last stage; nothing elsewhere.
  std::optional<Baton> run(const MicroBatch& sample) {
    const int num_stages = static_cast<int>(model_.layers_per_stage.size());
    const int first_flow = ranks_.peers().reserve_flows(num_stages);
    std::optional<Baton> baton;
    int begin = 0;
    for (int stage = 0; stage < num_stages; ++stage) {
      const int end = begin + model_.layers_per_stage[stage];
      if (is_own(stage)) {
        if (stage == 0) baton = start(sample);
        if (stage > 0 && !is_own(stage - 1)) baton = take(stage, first_flow + stage);
        if (!model_.streams.empty()) move(*baton, model_.streams[stage]->device());
        run_stage(stage, begin, end, sample.first_sample, *baton);
        if (stage + 1 < num_stages && !is_own(stage + 1)) {
          put(stage, first_flow + stage + 1, *baton);
          baton.reset();
        }
      }
      begin = end;
    }
    return baton;
  }

  const std::vector<std::string>& names() const { return names_; }

 private:
  bool is_own(int stage) const { return model_.worker_of_stage[stage] == ranks_.own_worker(); }

  // A layer may change the tensors in place.
  static Baton start(const MicroBatch& sample) {
    Baton baton;
    for (const at::Tensor& tensor : sample.tensors) {
      baton.tensors.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
    }
    return baton;
  }

  RemoteFlowOptions flow(int source, int id, int peer_stage) const {
    RemoteFlowOptions options;
    options.flow = {FlowKind::kActivation, source, source + 1};
    options.id = id;
    options.peer = ranks_.rank_of_worker(model_.worker_of_stage[peer_stage]);
    return options;
  }

  Baton take(int stage, int id) const {
    FlowReceiver receiver(ranks_.peers(), flow(stage - 1, id, stage - 1));
    return read_baton(receive(receiver, 0), static_cast<int>(names_.size()));
  }

  void put(int stage, int id, const Baton& baton) const {
    FlowSender sender(ranks_.peers(), flow(stage, id, stage + 1));
    send(sender, to_record(baton), 0);
    sender.flush();
  }

  void run_stage(int stage, int begin, int end, std::int64_t first_sample, Baton& baton) const {
    SkipTracer tracer(names_, std::move(baton.skips));
    const SkipScope skip_scope(tracer);
    const at::AutoGradMode grad_mode(false);
    for (int index = begin; index < end; ++index) {
      const ChainLayer& layer = model_.layers[index];
      const Sandbox sandbox({layer});
      LayerRun run;
      run.seed = model_.seed;
      run.layer = index;
      run.first_sample = first_sample;
      const LayerScope scope(run);
      tracer.begin_layer(index, baton.tensors);
      const Given given(baton.tensors);
      try {
        baton.tensors = layer.layer.forward(std::move(baton.tensors));
      } catch (...) {
        if (tracer.failed()) tracer.finish(/*complete=*/false);
        throw_action_error(ranks_.own_worker(), {ActionKind::kForward, stage, 0},
                           fmt::format("layer {} ({}){}, in a trial run before the first step", index, layer.name,
                                       given.describe(*layer.layer.module)));
      }
      tracer.end_layer();
    }
    baton.skips = tracer.state();
  }

  const TrialModel& model_;
  const Ranks& ranks_;
  std::vector<std::string> names_;
};

}  // namespace

std::vector<SkipProfile> try_skips(const TrialModel& model, const MicroBatch& sample, const Ranks& ranks) {
  Trial trial(model, ranks);
  Baton baton = trial.run(sample).value_or(Baton());
  baton.tensors.clear();  // the ranks need the skips only
  for (auto& [name, use] : baton.skips.uses) use.stashed.tensor = at::Tensor();
  const auto last = static_cast<std::size_t>(ranks.rank_of_worker(model.worker_of_stage.back()));
  const detail::WireRecord record = ranks.exchange().gather(to_record(baton))[last];
  SkipTracer tracer(trial.names(), read_baton(record, static_cast<int>(trial.names().size())).skips);
  return tracer.finish(/*complete=*/true);
}

}  // namespace gpipe
