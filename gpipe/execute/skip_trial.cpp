#include "gpipe/execute/skip_trial.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <cstdint>
#include <limits>
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
#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {
namespace {

// What goes from a stage to the next.
struct Baton {
  Tensors tensors;
  SkipTracer::State skips;
};

// Text, the stashed tensors, the others.
Tensors encode(const Baton& baton) {
  Fingerprint entries;
  Tensors encoded(1);
  for (const auto& [name, use] : baton.skips.uses) {
    const bool is_open = use.pop_layer < 0 && use.stashed.tensor.defined();
    const bool is_changed = is_open && version_of(use.stashed.tensor) != use.stashed.version;
    entries.emplace_back("skip", name);
    for (const std::int64_t number :
         {static_cast<std::int64_t>(use.stash_layer), static_cast<std::int64_t>(use.pop_layer), use.bytes,
          static_cast<std::int64_t>(is_changed)}) {
      entries.emplace_back("", std::to_string(number));
    }
    encoded.push_back(is_open ? use.stashed.tensor : at::Tensor());
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
    if (next < stashed.size()) use.stashed.tensor = stashed[next++];
    const bool is_changed = number(4) != 0;
    use.stashed.version = is_changed ? -1 : (use.stashed.tensor.defined() ? version_of(use.stashed.tensor) : 0);
  }
  return skips;
}

Baton decode(const Tensors& encoded) {
  Baton baton;
  baton.skips = decode_skips(to_text(encoded.at(0)), {encoded.begin() + 1, encoded.end()});
  baton.tensors.assign(encoded.begin() + 1 + static_cast<std::ptrdiff_t>(baton.skips.uses.size()), encoded.end());
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
    return decode(receive(receiver, 0));
  }

  void put(int stage, int id, const Baton& baton) const {
    FlowSender sender(ranks_.peers(), flow(stage, id, stage + 1));
    send(sender, encode(baton), 0);
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
  const std::optional<Baton> baton = trial.run(sample);
  std::string text;
  if (baton) text = to_text(encode(*baton).front());
  const int last = ranks.rank_of_worker(model.worker_of_stage.back());
  text = ranks.exchange().gather(text)[static_cast<std::size_t>(last)];
  SkipTracer tracer(trial.names(), decode_skips(text, {}));
  return tracer.finish(/*complete=*/true);
}

}  // namespace gpipe
