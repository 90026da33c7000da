#include "gpipe/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "gpipe/checkpoint/checkpoint_files.h"
#include "gpipe/checkpoint/checkpoint_ranks.h"
#include "gpipe/checkpoint/layer_names.h"
#include "gpipe/checkpoint/optimizer_state.h"
#include "gpipe/checkpoint/parallel.h"
#include "gpipe/checkpoint/weights.h"
#include "gpipe/checkpoint_files/checkpoint_lock.h"
#include "gpipe/checkpoint_files/new_checkpoint.h"
#include "gpipe/checkpoint_files/safetensors_format.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {
namespace {

using detail::begin_checkpoint;
using detail::discard_checkpoint;
using detail::FileLock;
using detail::is_added;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

TrainingLayout layout_of(const PipelineImpl& pipeline) {
  const PipelineOptions& options = pipeline.options();
  TrainingLayout layout;
  layout.num_replicas = pipeline.world().num_replicas;
  layout.num_workers = options.num_stages();
  layout.num_micro_batches = options.num_micro_batches();
  layout.schedule = options.custom_schedule() ? "custom" : options.schedule();
  layout.chunks_per_worker = options.chunks_per_worker();
  layout.layers_per_stage = pipeline.layers_per_stage();
  for (const Recompute mode : pipeline.recompute_by_stage()) layout.recompute.emplace_back(name(mode));
  if (layout.recompute.empty()) layout.recompute.emplace_back(name(options.recompute()));
  for (const Rematerialization& runs : pipeline.rematerialization()) {
    layout.rematerialization.push_back(to_text(runs));
  }
  return layout;
}

void check_state(const TrainingState& state) {
  for (const auto& item : state.added) {
    if (is_added(item.first)) continue;
    throw InvalidArgument(
        fmt::format("\"{}\" cannot be added to a checkpoint: such names begin with \"{}\"", item.first, kAddedPrefix));
  }
}

// Whether another rank has the weight of that name.
using IsElsewhere = std::function<bool(const std::string&)>;

// What is to be copied into what, once all of it is known to fit.
std::vector<std::pair<at::Tensor, at::Tensor>> prepare_weights(const Safetensors& content, const std::string& path,
                                                               const torch::nn::Module& module,
                                                               const IsElsewhere& is_elsewhere) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::map<std::string, at::Tensor> saved(content.tensors.begin(), content.tensors.end());
  const auto fail = [&](const std::string& what) {
    throw CheckpointError(
        path, fmt::format(" is of another model: {}; make the same model, or load the weights that fit", what));
  };
  for (const auto& [name, weight] : weights_of(module)) {
    const auto found = saved.find(name);
    if (found == saved.end()) fail(fmt::format("it has no \"{}\"", name));
    const at::Tensor& value = found->second;
    if (value.sizes() != weight.sizes() || value.scalar_type() != weight.scalar_type()) {
      fail(fmt::format("\"{}\" is [{}] of {} there, but [{}] of {} here", name, fmt::join(value.sizes(), ", "),
                       at::toString(value.scalar_type()), fmt::join(weight.sizes(), ", "),
                       at::toString(weight.scalar_type())));
    }
    copies.emplace_back(weight, value);
    saved.erase(found);
  }
  for (const auto& item : saved) {
    if (is_elsewhere(item.first) || is_added(item.first)) continue;
    fail(fmt::format("there is no place here for its \"{}\"", item.first));
  }
  return copies;
}

TrainingState state_in(const Manifest& manifest, const Safetensors& content) {
  TrainingState state;
  state.step = manifest.step;
  state.data_position = manifest.data_position;
  state.learning_rate = manifest.learning_rate;
  state.notes = manifest.notes;
  state.metadata = content.metadata;
  for (const auto& [name, tensor] : content.tensors) {
    if (is_added(name)) state.added.emplace_back(name, tensor.clone());
  }
  return state;
}

std::vector<double> learning_rates_of(const std::vector<OptimizerGroup>& groups) {
  std::vector<double> rates;
  for (const OptimizerGroup& group : groups) rates.push_back(group.options.at("lr"));
  return rates;
}

// A rate that is not the one that the optimizer was made with was set by a schedule; without its state it stays as it
// is.
void warn_of_learning_rate(TrainingState& state, const std::vector<double>& made_with) {
  if (!state.learning_rate.empty() || state.learning_rates == made_with) return;
  state.warnings.push_back(fmt::format(
      "the learning rate is {}, as when the checkpoint was saved, and not {}, which the optimizer was made with, but "
      "the checkpoint does not hold what changed it: if a scheduler did, save its state as well (save_scheduler)",
      fmt::join(state.learning_rates, ", "), fmt::join(made_with, ", ")));
}

// The part of the optimizer's state that belongs to this rank.
detail::OptimizerState own_state(const std::string& path, const Manifest& manifest,
                                 const std::vector<ManifestFile>& checked, const IsElsewhere& is_elsewhere) {
  const auto is_own = [&](const std::string& slot) { return !is_elsewhere(slot); };
  detail::OptimizerState state{manifest.optimizer, manifest.groups,
                               detail::load_slots(path, manifest, checked, is_own)};
  for (OptimizerGroup& group : state.groups) {
    group.parameters.erase(std::remove_if(group.parameters.begin(), group.parameters.end(), is_elsewhere),
                           group.parameters.end());
  }
  return state;
}

// Everything that a checkpoint changes, once it is known to fit.
struct Prepared {
  TrainingState state;
  std::int64_t pipeline_step = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::function<void()> set_optimizer;
};

Prepared prepare(const std::string& path, const Manifest& manifest, const std::vector<ManifestFile>& checked,
                 const torch::nn::Module& module, torch::optim::Optimizer& optimizer, const IsElsewhere& is_elsewhere) {
  const detail::OptimizerState state = own_state(path, manifest, checked, is_elsewhere);
  const Safetensors content = load_safetensors_set(path + "/" + kIndexName);
  Prepared prepared;
  prepared.copies = prepare_weights(content, path, module, is_elsewhere);
  prepared.set_optimizer = detail::prepare_state(optimizer, module, state, path);
  prepared.state = state_in(manifest, content);
  prepared.state.learning_rates = learning_rates_of(manifest.groups);
  warn_of_learning_rate(prepared.state, learning_rates_of(detail::state_of(optimizer, module).groups));
  prepared.pipeline_step = manifest.pipeline_step;
  return prepared;
}

Prepared prepare(const std::string& path, const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                 const LoadOptions& options) {
  const Manifest manifest = read_manifest(path);
  if (manifest.seed != pipeline->options().seed() && !options.any_seed) {
    throw CheckpointError(path, fmt::format(" was saved with the seed {}, but the pipeline has {}: it would draw other "
                                            "random numbers; make the pipeline with the same seed",
                                            manifest.seed, pipeline->options().seed()));
  }
  const detail::LayerNames layers(*pipeline);
  const std::vector<ManifestFile> checked =
      options.check_hashes ? detail::own_share(*pipeline, manifest.files) : std::vector<ManifestFile>();
  return prepare(path, manifest, checked, *pipeline, optimizer,
                 [&](const std::string& name) { return layers.is_elsewhere(name); });
}

void apply(Prepared& prepared) {
  detail::run_parallel(prepared.copies.size(), [&](std::size_t index) {
    const torch::NoGradGuard no_grad;
    prepared.copies[index].first.copy_(prepared.copies[index].second);
  });
  prepared.set_optimizer();
}

// All of it in one shard.
CheckpointSnapshot snapshot_of_module(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                                      const TrainingState& state) {
  check_state(state);
  detail::OptimizerState optimizer_state = detail::state_of(optimizer, module);
  CheckpointSnapshot snapshot;
  snapshot.metadata = state.metadata;
  snapshot.shards.push_back({0, weights_of(module), std::move(optimizer_state.slots)});
  NamedTensors& weights = snapshot.shards.front().weights;
  weights.insert(weights.end(), state.added.begin(), state.added.end());
  Manifest& manifest = snapshot.manifest;
  manifest.step = state.step;
  manifest.pipeline_step = state.step;
  manifest.data_position = state.data_position;
  manifest.learning_rate = state.learning_rate;
  manifest.notes = state.notes;
  manifest.gpipe_version = library_version();
  manifest.libtorch_version = TORCH_VERSION;
  manifest.layout.schedule = "none";
  manifest.optimizer = optimizer_state.type;
  manifest.groups = std::move(optimizer_state.groups);
  return snapshot;
}

void check_is_plain(const torch::nn::Module& module) {
  if (dynamic_cast<const PipelineImpl*>(&module) == nullptr) return;
  throw InvalidArgument(
      "the checkpoint of a pipeline needs the pipeline itself, not what it points to: pipeline, not "
      "*pipeline");
}

}  // namespace

CheckpointSnapshot snapshot_of(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                               const TrainingState& state) {
  CheckpointSnapshot snapshot = snapshot_of_module(*pipeline, optimizer, state);
  const detail::LayerNames layers(*pipeline);
  StageShard whole = std::move(snapshot.shards.front());
  std::vector<StageShard> shards(static_cast<std::size_t>(layers.num_stages()));
  for (auto& weight : whole.weights) shards[layers.stage_of(weight.first)].weights.push_back(std::move(weight));
  for (auto& slot : whole.slots) shards[layers.stage_of(slot.first)].slots.push_back(std::move(slot));
  snapshot.shards.clear();
  snapshot.num_stages = layers.num_stages();
  for (int stage = 0; stage < layers.num_stages(); ++stage) {
    shards[stage].stage = stage;
    if (layers.saves_stage(stage)) snapshot.shards.push_back(std::move(shards[stage]));
  }
  snapshot.manifest.pipeline_step = pipeline->step();
  snapshot.manifest.seed = pipeline->options().seed();
  snapshot.manifest.layout = layout_of(*pipeline);
  to_json(snapshot.manifest);  // throws before anything is written
  return snapshot;
}

SavedCheckpoint write_snapshot(const std::string& folder, const CheckpointSnapshot& snapshot,
                               const SaveOptions& options) {
  const auto start = Clock::now();
  FileSystem& files = options.file_system();
  const std::shared_ptr<const FileLock> lock = detail::lock_checkpoints(files, folder);
  const std::string temporary = begin_checkpoint(files, folder, snapshot.manifest.step);
  SavedCheckpoint saved;
  try {
    Manifest manifest = snapshot.manifest;
    manifest.files = detail::write_shards(files, temporary, snapshot, options.num_threads);
    saved = detail::commit_shards(files, temporary, std::move(manifest), options.retention);
  } catch (...) {
    discard_checkpoint(files, temporary);
    throw;
  }
  saved.not_locked = lock->problem();
  saved.write_seconds = seconds_since(start);
  return saved;
}

SavedCheckpoint save_checkpoint(const std::string& folder, const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                                const TrainingState& state, const SaveOptions& options) {
  const auto start = Clock::now();
  const auto make = [&] { return snapshot_of(pipeline, optimizer, state); };
  const bool is_alone = pipeline->world().size == 1;
  SavedCheckpoint saved = is_alone ? write_snapshot(folder, make(), options)
                                   : detail::begin_save(pipeline, folder, options, make)->finish();
  saved.pause_seconds = seconds_since(start);
  return saved;
}

TrainingState load_checkpoint(const std::string& given_path, Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                              const LoadOptions& options) {
  const std::string path = detail::agree_on_checkpoint(*pipeline, given_path);
  Prepared prepared;
  detail::tell_all_ranks(*pipeline, "reading a checkpoint",
                         [&](detail::WireRecord&) { prepared = prepare(path, pipeline, optimizer, options); });
  apply(prepared);
  pipeline->set_step(prepared.pipeline_step);
  return prepared.state;
}

SavedCheckpoint save_checkpoint(const std::string& folder, const torch::nn::Module& module,
                                torch::optim::Optimizer& optimizer, const TrainingState& state,
                                const SaveOptions& options) {
  const auto start = Clock::now();
  check_is_plain(module);
  const CheckpointSnapshot snapshot = snapshot_of_module(module, optimizer, state);
  to_json(snapshot.manifest);  // throws before anything is written
  SavedCheckpoint saved = write_snapshot(folder, snapshot, options);
  saved.pause_seconds = seconds_since(start);
  return saved;
}

TrainingState load_checkpoint(const std::string& given_path, torch::nn::Module& module,
                              torch::optim::Optimizer& optimizer, const LoadOptions& options) {
  check_is_plain(module);
  const std::string path = resolve_checkpoint(given_path);
  const Manifest manifest = read_manifest(path);
  const std::vector<ManifestFile> checked = options.check_hashes ? manifest.files : std::vector<ManifestFile>();
  Prepared prepared =
      prepare(path, manifest, checked, module, optimizer, [](const std::string& /*name*/) { return false; });
  apply(prepared);
  return prepared.state;
}

Manifest read_checked_manifest(const Pipeline& pipeline, const std::string& checkpoint) {
  Manifest manifest;
  detail::tell_all_ranks(*pipeline, "checking a checkpoint", [&](detail::WireRecord&) {
    manifest = read_manifest(checkpoint);
    detail::check_hashes(checkpoint, detail::own_share(*pipeline, manifest.files));
  });
  return manifest;
}

}  // namespace gpipe
