#include "train/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <vector>

#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/wrap.h"
#include "data/data_error.h"
#include "train/checkpoint_dir.h"

namespace gpipe::train {
namespace {

constexpr const char* kNumBatches = "batches of an epoch";
constexpr const char* kDataHash = "hash of the data";
constexpr std::size_t kNoteWidth = 80;
constexpr std::size_t kNoteIndent = 2;

// Whole or not, as rank 0 sees them.
std::vector<std::string> candidates(const Pipeline& pipeline, const std::string& folder) {
  std::string lines;
  if (read_world().rank == 0) {
    for (const std::string& path : checkpoints_in(folder)) {
      lines += std::filesystem::path(path).filename().string() + "\n";
    }
  }
  std::istringstream stream(of_first_rank(pipeline, lines));
  std::vector<std::string> paths;
  for (std::string name; std::getline(stream, name);) paths.push_back(folder + "/" + name);
  return paths;
}

// The learning rate follows its schedule; all else is as it was saved.
std::string kept_options(const OptimizerOptions& wanted, const std::map<std::string, double>& saved) {
  std::string notes;
  for (const auto& [name, given] :
       {std::make_pair("momentum", wanted.momentum), std::make_pair("weight_decay", wanted.weight_decay)}) {
    const auto kept = saved.find(name);
    if (kept == saved.end() || kept->second == given) continue;
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    notes += fmt::format("note: the {} stays {}, as the training was begun with, and is not {}\n", words, kept->second,
                         given);
  }
  return notes;
}

}  // namespace

RunCheckpoints::RunCheckpoints(const TrainerOptions& options, const Task& task, const LearningRate& learning_rate)
    : options_(options),
      task_(task),
      learning_rate_(learning_rate),
      notes_{{kNumBatches, std::to_string(task.num_batches())}, {kDataHash, task.data_hash()}},
      writer_(options.checkpoint_dir, SaveOptions{options.retention, 0, nullptr}) {}

void RunCheckpoints::lock(const Pipeline& pipeline) {
  const std::string problem = writer_.lock(pipeline);
  if (problem.empty()) return;
  cli::print(fmt::format("note: {} cannot be locked ({}): see to it that no other training saves there\n",
                         options_.checkpoint_dir, problem));
}

void RunCheckpoints::remove_earlier() const {
  if (options_.resume || !options_.force || read_world().rank != 0) return;
  const int count = remove_checkpoints(options_.checkpoint_dir);
  if (count == 0) return;
  cli::print(fmt::format("removed {} checkpoint{} of an earlier training from {}\n", count, count == 1 ? "" : "s",
                         options_.checkpoint_dir));
}

std::optional<RunCheckpoints::Resumed> RunCheckpoints::resume(Pipeline& pipeline,
                                                              torch::optim::Optimizer& optimizer) const {
  Resumed resumed;
  Manifest manifest;
  std::string first_error;
  for (const std::string& path : candidates(pipeline, options_.checkpoint_dir)) {
    try {
      manifest = read_checked_manifest(pipeline, path);
      resumed.path = path;
      break;
    } catch (const CheckpointError& error) {
      if (first_error.empty()) first_error = error.what();
      resumed.notes += fmt::format("note: {}\n", error.what());
    }
  }
  if (resumed.path.empty() && first_error.empty()) return std::nullopt;
  if (resumed.path.empty()) {
    throw CheckpointError(
        options_.checkpoint_dir,
        fmt::format(": none of its checkpoints is whole ({}); --force, without --resume, removes them and begins anew",
                    first_error));
  }
  const auto batches = manifest.notes.find(kNumBatches);
  if (batches != manifest.notes.end() && batches->second != std::to_string(task_.num_batches())) {
    throw CheckpointError(resumed.path,
                          fmt::format(" was saved when an epoch had {} batches, and now it has {}; use the "
                                      "same data and batch size",
                                      batches->second, task_.num_batches()));
  }
  const auto data = manifest.notes.find(kDataHash);
  if (data != manifest.notes.end() && data->second != notes_.at(kDataHash)) {
    throw CheckpointError(resumed.path,
                          " was saved in a training on other data; use the same data, or begin a new training with its "
                          "weights (--weights, and another --checkpoint-dir)");
  }
  LoadOptions unchecked;
  unchecked.check_hashes = false;  // just done
  const TrainingState state = load_checkpoint(resumed.path, pipeline, optimizer, unchecked);
  resumed.notes += kept_options(options_.optimizer, manifest.groups.front().options);
  for (const std::string& warning : state.warnings) resumed.notes += fmt::format("note: {}\n", warning);
  resumed.step = state.step;
  try {
    resumed.position = data::parse_position(state.data_position);
  } catch (const data::DataError&) {
    throw CheckpointError(resumed.path, " does not say where in the data it was; resume what 'gpipe train' has saved");
  }
  if (state.learning_rate != learning_rate_.to_json()) {
    const std::string note =
        fmt::format("note: the learning rate is now {}; before, it was {}", learning_rate_.in_words(),
                    cli::printable(learning_rate_in_words(state.learning_rate)));
    resumed.notes += cli::wrapped(note, kNoteWidth - kNoteIndent, kNoteIndent) + "\n";
  }
  const auto note_change = [&](const char* what, int before, int now) {
    if (before == now) return;
    resumed.notes +=
        fmt::format("note: there were {} {}, and now there are {}: the last bits will differ\n", before, what, now);
  };
  note_change("replicas", manifest.layout.num_replicas, pipeline->world().num_replicas);
  note_change("micro-batches", manifest.layout.num_micro_batches, pipeline->options().num_micro_batches());
  return resumed;
}

void RunCheckpoints::save(const Pipeline& pipeline, torch::optim::Optimizer& optimizer, std::int64_t step,
                          const data::Position& position) {
  TrainingState state;
  state.step = step;
  state.data_position = to_json(position);
  state.learning_rate = learning_rate_.to_json();
  state.notes = notes_;
  state.metadata = task_.metadata();
  state.added = task_.added_tensors();
  writer_.save(pipeline, optimizer, state);
  last_step_ = step;
}

void RunCheckpoints::finish() {
  const std::optional<SavedCheckpoint> saved = writer_.wait();
  if (!saved || saved->not_removed.empty() || read_world().rank != 0) return;
  cli::print(fmt::format("note: {} older checkpoint{} could not be removed, such as {}; check its permissions\n",
                         saved->not_removed.size(), saved->not_removed.size() == 1 ? "" : "s",
                         saved->not_removed.front()));
}

}  // namespace gpipe::train
