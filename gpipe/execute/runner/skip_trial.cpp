#include "gpipe/execute/runner/skip_trial.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/values/checked_options.h"
#include "gpipe/interpret/executor.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/noted_input.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/model/skip_tracer.h"
#include "gpipe/transport/stage_stream.h"
#include "gpipe/transport/wire_table.h"

namespace gpipe::detail {
namespace {

// Of a message between two stages: the tensors that go from layer to layer, and those that are stashed and not popped
// yet.
constexpr int kMostTensors = 1024;

// What goes from a stage to the next.
struct Baton {
  Tensors tensors;
  SkipTracer::State skips;
};

struct SkipRow {
  std::string name;
  SkipTracer::Use use;
  bool is_changed = false;
  bool is_open = false;  // a later stage pops it
};

constexpr auto skip_columns(int num_layers = std::numeric_limits<int>::max()) {
  return std::tuple(column("skips", &SkipRow::name),
                    column(
                        "stash_layers", [](auto& row) -> auto& { return row.use.stash_layer; }, -1, num_layers - 1),
                    column(
                        "pop_layers", [](auto& row) -> auto& { return row.use.pop_layer; }, -1, num_layers - 1),
                    column(
                        "bytes", [](auto& row) -> auto& { return row.use.bytes; }, 0),
                    column("are_changed", &SkipRow::is_changed), column("are_open", &SkipRow::is_open));
}

WireRecord to_record(const Baton& baton) {
  std::vector<SkipRow> rows;
  Tensors stashed;
  for (const auto& [name, use] : baton.skips.uses) {
    const bool is_open = use.pop_layer < 0 && use.stashed.tensor.defined();
    rows.push_back({name, use, is_open && version_of(use.stashed.tensor) != use.stashed.version, is_open});
    if (is_open) stashed.push_back(use.stashed.tensor);
  }
  WireRecord record;
  add_table(record, rows, skip_columns());
  record.add("stashed", stashed);
  record.add("violations", baton.skips.violations);
  record.add("tensors", baton.tensors);
  return record;
}

Baton read_baton(const WireRecord& record, int num_layers) {
  WireReader reader(record, "these are not skips");
  std::vector<SkipRow> rows = read_table<SkipRow>(reader, skip_columns(num_layers));
  const auto num_open = std::count_if(rows.begin(), rows.end(), [](const SkipRow& row) { return row.is_open; });
  reader.check_num_rows({"stashed"}, static_cast<std::size_t>(num_open));
  const Tensors stashed = reader.tensors("stashed");
  std::size_t next = 0;
  Baton baton;
  for (SkipRow& row : rows) {
    if (row.is_open) row.use.stashed.tensor = stashed[next++];
    const at::Tensor& tensor = row.use.stashed.tensor;
    row.use.stashed.version = row.is_changed ? -1 : (tensor.defined() ? version_of(tensor) : 0);
    baton.skips.uses[row.name] = std::move(row.use);
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

// The inputs of a trial, which may be read after those points.
struct GivenSample {
  const MicroBatch& sample;
  CallerPoints points;
};

// The layers of a stage, which a trial runs forward once. See Executor.
class TrialStage {
 public:
  using Message = Packet;

  // REQUIRES: all outlive it.
  TrialStage(const Assembly::Parts& parts, int stage, const std::vector<std::string>& names, std::uint64_t seed,
             const GivenSample& given)
      : stream_(parts.split.stream(stage)), names_(names), seed_(seed), given_(given) {
    for (const ChainLayer& layer : parts.model.layers()) {
      if (parts.cut.stage_of(layer.index) == stage) layers_.push_back(layer);
    }
  }

  void forward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs) {
    std::optional<StageStream::Guard> guard;
    if (stream_ != nullptr) guard.emplace(*stream_);
    Baton baton =
        inputs.empty() ? start() : read_baton(decode(inputs.front().tensors), static_cast<int>(names_.size()));
    if (stream_ != nullptr) move(baton, stream_->device());
    run_layers(baton);
    if (outputs.empty()) {
      result_ = std::move(baton);
      return;
    }
    Packet& packet = outputs.front();
    packet.step = 0;
    packet.micro_batch = micro_batch;
    packet.tensors = encode(to_record(baton));
  }
  // A trial has forwards only.
  void recompute(int /*micro_batch*/) {}
  void backward(int /*micro_batch*/, const std::vector<Packet>& /*inputs*/, std::vector<Packet>& /*outputs*/) {}
  void input_grad(int /*micro_batch*/, const std::vector<Packet>& /*inputs*/, std::vector<Packet>& /*outputs*/) {}
  void weight_grad(int /*micro_batch*/) {}
  void give_tied(std::vector<Packet>& /*outputs*/) {}
  void take_tied(int /*source*/, const Packet& /*input*/) {}
  void settle() {}
  void update() {}

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
    for (const at::Tensor& tensor : given_.sample.tensors) {
      at::Tensor here = tensor.defined() ? tensor.detach() : tensor;
      if (here.defined() && stream_ != nullptr) here = stream_->bring(here, given_.points.on(here.device()));
      baton.tensors.push_back(here.defined() ? here.clone() : here);
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
      run.first_sample = given_.sample.first_sample;
      const LayerScope scope(run);
      at_work_ = &layer;
      tracer.begin_layer(layer.index, baton.tensors);
      const NotedInput given(baton.tensors);
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
  const GivenSample& given_;
  std::vector<ChainLayer> layers_;
  std::atomic<const ChainLayer*> at_work_ = nullptr;
  std::string failed_input_;  // what the layer that threw was given
  Baton result_;
};

}  // namespace

std::vector<SkipProfile> find_skips(const Assembly::Parts& parts, const PipelineOptions& options, Workers& workers,
                                    const CallerState& caller, const MicroBatch& sample) {
  const std::vector<std::string> names = parts.model.layer_names();
  const auto proven = prove(forwards_of(schedule_for(options, parts.cut, options.num_micro_batches()), 1), {});
  GivenSample given{sample, {}};
  if (parts.split.has_devices()) given.points.record(sample.tensors);
  std::vector<std::shared_ptr<StageStream>> streams;
  std::vector<std::unique_ptr<TrialStage>> stages;
  std::vector<TrialStage*> pointers;
  for (int stage = 0; stage < parts.cut.num_stages(); ++stage) {
    const bool is_here = parts.split.runs_stage(stage);
    stages.push_back(is_here ? std::make_unique<TrialStage>(parts, stage, names, options.seed(), given) : nullptr);
    streams.push_back(parts.split.stream(stage));
    pointers.push_back(stages.back().get());
  }
  FlowTensors most;
  most.direct = kMostTensors;
  Executor<TrialStage> executor(proven, parts.group.connect(*proven, most), std::move(pointers));
  const CallerOrder order(std::move(streams));
  try {
    executor.run(workers, Phase::kForward, [&](const std::function<void()>& work) { caller.run(work); },
                 {options.watchdog_seconds(), options.on_stuck()});
  } catch (const ActionError& error) {
    error.rethrow_if<SkipError>();
    throw;
  }
  Baton result;
  if (stages.back() != nullptr) result.skips = stages.back()->result().skips;
  for (auto& [name, use] : result.skips.uses) use.stashed.tensor = at::Tensor();  // the ranks need the names only
  const WireRecord found = parts.group.broadcast(parts.cut.worker_of_stage.back(), to_record(result));
  SkipTracer tracer(names, read_baton(found, static_cast<int>(names.size())).skips);
  return tracer.finish(/*complete=*/true);
}

}  // namespace gpipe::detail
