#include "gpipe/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "gpipe/checkpoint/optimizer_state.h"
#include "gpipe/checkpoint/parallel.h"
#include "gpipe/checkpoint/safetensors_index.h"
#include "gpipe/checkpoint/weights.h"

namespace gpipe {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Finds the stage of a weight by the layer that its name begins with.
class StageOfName {
 public:
  explicit StageOfName(const PipelineImpl& pipeline) {
    int stage = 0;
    int end = 0;
    for (int layer = 0; layer < pipeline.num_layers(); ++layer) {
      if (!pipeline.layers_per_stage().empty()) {
        if (layer == 0) end = pipeline.layers_per_stage().front();
        while (layer >= end) end += pipeline.layers_per_stage()[++stage];
      }
      stage_of_layer_[pipeline.layer_name(layer)] = stage;
    }
    num_stages_ = stage + 1;
  }

  int num_stages() const { return num_stages_; }

  int of(const std::string& name) const {
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const auto found = stage_of_layer_.find(name.substr(0, dot));
      if (found != stage_of_layer_.end()) return found->second;
    }
    return 0;
  }

 private:
  std::map<std::string, int> stage_of_layer_;
  int num_stages_ = 1;
};

TrainingLayout layout_of(const PipelineImpl& pipeline) {
  const PipelineOptions& options = pipeline.options();
  TrainingLayout layout;
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
    if (item.first.compare(0, std::string(kAddedPrefix).size(), kAddedPrefix) == 0) continue;
    throw InvalidArgument(
        fmt::format("\"{}\" cannot be added to a checkpoint: such names begin with \"{}\"", item.first, kAddedPrefix));
  }
}

// What is to be copied into what, once all of it is known to fit.
std::vector<std::pair<at::Tensor, at::Tensor>> prepare_weights(const Safetensors& content, const std::string& path,
                                                               const torch::nn::Module& module) {
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
    if (item.first.compare(0, std::string(kAddedPrefix).size(), kAddedPrefix) != 0) {
      fail(fmt::format("there is no place here for its \"{}\"", item.first));
    }
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
    if (name.compare(0, std::string(kAddedPrefix).size(), kAddedPrefix) == 0) {
      state.added.emplace_back(name, tensor.clone());
    }
  }
  return state;
}

}  // namespace

CheckpointSnapshot snapshot_of(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                               const TrainingState& state) {
  check_state(state);
  const StageOfName stage(*pipeline);
  CheckpointSnapshot snapshot;
  snapshot.metadata = state.metadata;
  snapshot.shards.resize(stage.num_stages());
  for (int index = 0; index < stage.num_stages(); ++index) snapshot.shards[index].stage = index;
  for (const auto& item : weights_of(*pipeline)) snapshot.shards[stage.of(item.first)].weights.push_back(item);
  for (const auto& item : state.added) snapshot.shards.front().weights.push_back(item);
  OptimizerState optimizer_state = state_of(optimizer, *pipeline);
  for (auto& slot : optimizer_state.slots) snapshot.shards[stage.of(slot.first)].slots.push_back(std::move(slot));

  Manifest& manifest = snapshot.manifest;
  manifest.step = state.step;
  manifest.pipeline_step = pipeline->step();
  manifest.seed = pipeline->options().seed();
  manifest.data_position = state.data_position;
  manifest.learning_rate = state.learning_rate;
  manifest.notes = state.notes;
  manifest.layout = layout_of(*pipeline);
  manifest.gpipe_version = library_version();
  manifest.libtorch_version = TORCH_VERSION;
  manifest.optimizer = std::move(optimizer_state.type);
  manifest.groups = std::move(optimizer_state.groups);
  to_json(manifest);  // throws before anything is written
  return snapshot;
}

SavedCheckpoint write_snapshot(const std::string& folder, const CheckpointSnapshot& snapshot,
                               const SaveOptions& options) {
  const auto start = Clock::now();
  FileSystem& files = options.files != nullptr ? *options.files : real_file_system();
  Manifest manifest = snapshot.manifest;
  SavedCheckpoint saved;
  const std::string temporary = begin_checkpoint(files, folder, manifest.step);
  try {
    const int num_stages = static_cast<int>(snapshot.shards.size());
    std::vector<std::vector<ManifestFile>> written(snapshot.shards.size());
    run_parallel(
        snapshot.shards.size(),
        [&](std::size_t index) {
          written[index] = write_shard(files, temporary, snapshot.shards[index], num_stages, snapshot.metadata);
        },
        options.num_threads);
    for (const auto& shard : written) manifest.files.insert(manifest.files.end(), shard.begin(), shard.end());
    manifest.files.push_back(write_index(files, temporary, manifest.files));
    saved.path = commit_checkpoint(files, temporary, manifest);
  } catch (...) {
    discard_checkpoint(files, temporary);
    throw;
  }
  for (const ManifestFile& file : manifest.files) saved.bytes += file.bytes;
  saved.not_removed = remove_old_checkpoints(files, saved.path, options.retention);
  saved.write_seconds = seconds_since(start);
  return saved;
}

SavedCheckpoint save_checkpoint(const std::string& folder, const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                                const TrainingState& state, const SaveOptions& options) {
  const auto start = Clock::now();
  SavedCheckpoint saved = write_snapshot(folder, snapshot_of(pipeline, optimizer, state), options);
  saved.pause_seconds = seconds_since(start);
  return saved;
}

TrainingState load_checkpoint(const std::string& given_path, Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                              const LoadOptions& options) {
  const std::string path = resolve_checkpoint(given_path);
  const Manifest manifest = read_manifest(path);
  if (options.check_hashes) check_hashes(path, manifest);
  if (manifest.seed != pipeline->options().seed() && !options.any_seed) {
    throw CheckpointError(path, fmt::format(" was saved with the seed {}, but the pipeline has {}: it would draw other "
                                            "random numbers; make the pipeline with the same seed",
                                            manifest.seed, pipeline->options().seed()));
  }
  const Safetensors content = load_safetensors_set(path + "/" + kIndexName);
  auto copies = prepare_weights(content, path, *pipeline);
  const std::function<void()> set_optimizer =
      prepare_state(optimizer, *pipeline, {manifest.optimizer, manifest.groups, load_slots(path, manifest)}, path);
  TrainingState state = state_in(manifest, content);

  const torch::NoGradGuard no_grad;
  for (auto& [weight, value] : copies) weight.copy_(value);
  set_optimizer();
  pipeline->set_step(manifest.pipeline_step);
  return state;
}

}  // namespace gpipe
