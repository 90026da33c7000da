#include "gpipe/checkpoint/checkpoint_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <utility>

#include "gpipe/checkpoint/checkpoint_files.h"
#include "gpipe/checkpoint_files/checkpoint_lock.h"
#include "gpipe/checkpoint_files/new_checkpoint.h"
#include "gpipe/execute/engine/engine.h"
#include "gpipe/execute/group/step_call.h"
#include "gpipe/os/input_file.h"
#include "gpipe/os/output_file.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {
namespace {

namespace fs = std::filesystem;

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

constexpr auto kLookAgain = std::chrono::milliseconds(100);

void add_files(WireRecord& record, const std::vector<ManifestFile>& files) {
  std::vector<std::string> names;
  std::vector<std::int64_t> bytes;
  std::vector<std::string> hashes;
  for (const ManifestFile& file : files) {
    names.push_back(file.name);
    bytes.push_back(file.bytes);
    hashes.push_back(file.hash);
  }
  record.add("file_names", std::move(names));
  record.add("file_bytes", bytes);
  record.add("file_hashes", std::move(hashes));
}

std::vector<ManifestFile> read_files(const WireRecord& record) {
  WireReader reader(record, "these are not files of a checkpoint");
  const std::size_t count = reader.num_rows({"file_names", "file_bytes", "file_hashes"});
  const std::vector<std::string>& names = reader.texts("file_names");
  const std::vector<std::int64_t> bytes = reader.integers<std::int64_t>("file_bytes", 0);
  const std::vector<std::string>& hashes = reader.texts("file_hashes");
  reader.finish();
  std::vector<ManifestFile> files;
  for (std::size_t index = 0; index < count; ++index) files.push_back({names[index], bytes[index], hashes[index]});
  return files;
}

// The only thing that a rank has given.
std::string read_text(const WireRecord& record, const std::string& name) {
  WireReader reader(record, "this is not what a rank says of a checkpoint");
  std::string text = reader.text(name);
  reader.finish();
  return text;
}

// The groups of all ranks of the first replica as one. Throws InvalidArgument if they are not parts of the same
// training.
std::vector<OptimizerGroup> merge_groups(const std::vector<Manifest>& of_rank, int num_stages) {
  const auto check = [](bool is_same, const char* what, std::size_t rank) {
    if (is_same) return;
    throw InvalidArgument(fmt::format(
        "{} on rank {} is another one than on rank 0; every rank has to save the same training", what, rank));
  };
  const Manifest& first = of_rank.front();
  std::vector<OptimizerGroup> groups = first.groups;
  for (std::size_t rank = 1; rank < of_rank.size(); ++rank) {
    const Manifest& other = of_rank[rank];
    check(other.step == first.step, "the step", rank);
    check(other.data_position == first.data_position, "the position in the data", rank);
    check(other.learning_rate == first.learning_rate, "the learning rate's state", rank);
    check(other.notes == first.notes, "the notes", rank);
    check(other.optimizer == first.optimizer, "the optimizer", rank);
    check(other.groups.size() == groups.size(), "the number of parameter groups", rank);
    for (std::size_t group = 0; group < groups.size(); ++group) {
      const OptimizerGroup& more = other.groups[group];
      check(more.options == groups[group].options, "an option of the optimizer", rank);
      if (rank >= static_cast<std::size_t>(num_stages)) continue;
      for (const std::string& name : more.parameters) {
        std::vector<std::string>& names = groups[group].parameters;
        // Before there are stages, every rank has all of them.
        if (first.layout.layers_per_stage.empty() && std::count(names.begin(), names.end(), name) > 0) continue;
        names.push_back(name);
      }
    }
  }
  return groups;
}

template <typename Result>
bool is_ready(const std::future<Result>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// On the only rank: its thread puts the checkpoint in place by itself.
class LocalSave : public PendingSave {
 public:
  LocalSave(const std::string& folder, const SaveOptions& options,
            const std::function<CheckpointSnapshot()>& make_snapshot)
      : lock_(lock_checkpoints(options.file_system(), folder)),
        written_(std::async(std::launch::async, [folder, options, snapshot = make_snapshot()] {
          return write_snapshot(folder, snapshot, options);
        })) {}

  bool is_written() override { return is_ready(written_); }
  SavedCheckpoint finish() override { return written_.get(); }
  bool can_finish() const override { return true; }
  const std::shared_ptr<const FileLock>& lock() const override { return lock_; }

 private:
  const std::shared_ptr<const FileLock> lock_;
  std::future<SavedCheckpoint> written_;
};

// On one of several ranks: see Note [A checkpoint of several ranks].
class RankSave : public PendingSave {
 public:
  RankSave(const Pipeline& pipeline, const std::string& folder, const SaveOptions& options,
           const std::function<CheckpointSnapshot()>& make_snapshot);

  bool is_written() override;
  SavedCheckpoint finish() override;
  bool can_finish() const override { return !pipeline_->engine().group().has_failed(); }
  const std::shared_ptr<const FileLock>& lock() const override { return lock_; }

 private:
  std::vector<ManifestFile> write_own() const;
  SavedCheckpoint commit(const std::vector<WireRecord>& shards) const;

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const Pipeline pipeline_;
  const SaveOptions options_;
  const bool commits_;  // rank 0 does
  std::shared_ptr<const FileLock> lock_;
  CheckpointSnapshot snapshot_;
  std::string temporary_;
  std::future<std::vector<ManifestFile>> written_;  // the last: it uses the others, and its end is waited for
};

RankSave::RankSave(const Pipeline& pipeline, const std::string& folder, const SaveOptions& options,
                   const std::function<CheckpointSnapshot()>& make_snapshot)
    : pipeline_(pipeline), options_(options), commits_(pipeline->world().rank == 0) {
  const auto manifests = tell_all_ranks(*pipeline_, "saving a checkpoint", [&](WireRecord& given) {
    snapshot_ = make_snapshot();
    given.add("manifest", to_json(snapshot_.manifest));
  });
  std::vector<Manifest> of_rank;
  for (const WireRecord& given : manifests) {
    of_rank.push_back(parse_manifest(read_text(given, "manifest"), "a rank's manifest"));
  }
  snapshot_.manifest.groups = merge_groups(of_rank, pipeline_->world().num_stages());
  const auto made = tell_all_ranks(*pipeline_, "making a checkpoint's folder", [&](WireRecord& given) {
    if (!commits_) return;
    lock_ = lock_checkpoints(options_.file_system(), folder);
    temporary_ = begin_checkpoint(options_.file_system(), folder, snapshot_.manifest.step);
    given.add("folder", fs::path(temporary_).filename().string());
  });
  if (!commits_) temporary_ = without_slashes(folder) + "/" + read_text(made.front(), "folder");
  written_ = std::async(std::launch::async, [this] { return write_own(); });
}

std::vector<ManifestFile> RankSave::write_own() const {
  if (!is_folder(temporary_)) {
    throw CheckpointError(temporary_,
                          ": rank 0 has made this folder, but it is not to be seen from here; the folder of the "
                          "checkpoints has to be on a file system that all hosts share, under the same path");
  }
  return write_shards(options_.file_system(), temporary_, snapshot_, options_.num_threads);
}

bool RankSave::is_written() {
  const auto answers = tell_all_ranks(*pipeline_, "looking after a checkpoint",
                                      [&](WireRecord& given) { given.add("is_ready", is_ready(written_)); });
  return std::all_of(answers.begin(), answers.end(), [](const WireRecord& answer) {
    return WireReader(answer, "this is not what a rank says of a checkpoint").flag("is_ready");
  });
}

SavedCheckpoint RankSave::finish() {
  // They look together, so that a rank that writes for long is not taken for a dead one.
  while (!is_written()) written_.wait_for(kLookAgain);
  SavedCheckpoint saved;
  try {
    const auto shards =
        tell_all_ranks(*pipeline_, "ending a checkpoint", [&](WireRecord& given) { add_files(given, written_.get()); });
    const auto told = tell_all_ranks(*pipeline_, "putting a checkpoint in place", [&](WireRecord& given) {
      if (!commits_) return;
      saved = commit(shards);
      given.add("folder", fs::path(saved.path).filename().string());
      given.add("bytes", saved.bytes);
      given.add("not_removed", saved.not_removed);
      given.add("not_locked", lock_->problem());
    });
    WireReader reader(told.front(), "this is not a saved checkpoint");
    saved.path = directory_of(temporary_) + "/" + reader.text("folder");
    saved.bytes = reader.integer<std::int64_t>("bytes", 0);
    saved.not_removed = reader.texts("not_removed");
    saved.not_locked = reader.text("not_locked");
    reader.finish();
  } catch (...) {
    if (commits_ && saved.path.empty()) discard_checkpoint(options_.file_system(), temporary_);
    throw;
  }
  saved.write_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return saved;
}

SavedCheckpoint RankSave::commit(const std::vector<WireRecord>& shards) const {
  Manifest manifest = snapshot_.manifest;
  for (const WireRecord& of_rank : shards) {
    for (ManifestFile& file : read_files(of_rank)) {
      const std::string path = temporary_ + "/" + file.name;
      std::error_code error;
      if (fs::file_size(path, error) != static_cast<std::uintmax_t>(file.bytes) || error) {
        throw CheckpointError(path,
                              " was written by another rank, but is not to be seen by rank 0; the folder of the "
                              "checkpoints has to be on a file system that all hosts share");
      }
      manifest.files.push_back(std::move(file));
    }
  }
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.name < b.name; });
  return commit_shards(options_.file_system(), temporary_, std::move(manifest), options_.retention);
}

}  // namespace

std::vector<WireRecord> tell_all_ranks(const PipelineImpl& pipeline, const std::string& call,
                                       const std::function<void(WireRecord&)>& give) {
  WireRecord given;  // nothing if there is an error
  std::string error;
  bool is_bad_argument = false;
  std::exception_ptr own;
  try {
    give(given);
  } catch (const std::exception& thrown) {
    given = {};
    error = thrown.what();
    if (error.empty()) error = "an error without a text";
    is_bad_argument = dynamic_cast<const InvalidArgument*>(&thrown) != nullptr;
    own = std::current_exception();
  }
  StepCall step_call;
  step_call.name = call;
  step_call.step = pipeline.step();
  WireRecord record = to_record(step_call);
  record.add("error", error);
  record.add("is_bad_argument", is_bad_argument);
  record.append(given);
  std::vector<StepCall> calls;
  std::vector<WireRecord> rests;
  for (const WireRecord& told : pipeline.engine().group().gather(record)) {
    calls.push_back(read_step_call(told, &rests.emplace_back()));
  }
  agreed_calls(calls);  // throws if one of them is another call, whose rest would mean nothing
  if (own != nullptr) std::rethrow_exception(own);
  std::vector<WireRecord> of_rank;
  for (const WireRecord& rest : rests) {
    WireReader reader(rest, "this is not what a rank says of a checkpoint");
    error = reader.text("error");
    is_bad_argument = reader.flag("is_bad_argument");
    const auto rank = static_cast<int>(of_rank.size());
    of_rank.push_back(reader.rest());
    if (error.empty()) continue;
    const std::string text = fmt::format("rank {} (host {}): {}", rank, pipeline.engine().group().host_of(rank), error);
    if (is_bad_argument) throw InvalidArgument(text);
    throw CheckpointError(text);
  }
  return of_rank;
}

std::unique_ptr<PendingSave> begin_save(const Pipeline& pipeline, const std::string& folder, const SaveOptions& options,
                                        const std::function<CheckpointSnapshot()>& make_snapshot) {
  if (pipeline->world().size == 1) return std::make_unique<LocalSave>(folder, options, make_snapshot);
  return std::make_unique<RankSave>(pipeline, folder, options, make_snapshot);
}

std::vector<ManifestFile> own_share(const PipelineImpl& pipeline, const std::vector<ManifestFile>& files) {
  const World& world = pipeline.world();
  std::vector<ManifestFile> share;
  for (std::size_t file = static_cast<std::size_t>(world.rank); file < files.size();
       file += static_cast<std::size_t>(world.size)) {
    share.push_back(files[file]);
  }
  return share;
}

std::string agree_on_checkpoint(const PipelineImpl& pipeline, const std::string& path) {
  if (pipeline.world().size == 1) return resolve_checkpoint(path);
  const bool decides = pipeline.world().rank == 0;
  const auto answers = tell_all_ranks(pipeline, "loading a checkpoint", [&](WireRecord& given) {
    if (!decides) return;
    const std::string resolved = resolve_checkpoint(path);
    given.add("found", is_there(path + "/" + kManifestName) ? "" : fs::path(resolved).filename().string());
  });
  const std::string found = read_text(answers.front(), "found");
  const std::string checkpoint = found.empty() ? without_slashes(path) : without_slashes(path) + "/" + found;
  const auto seen = tell_all_ranks(pipeline, "looking for a checkpoint", [&](WireRecord& given) {
    if (!is_there(checkpoint + "/" + kManifestName)) {
      throw CheckpointError(checkpoint,
                            ": rank 0 has found this checkpoint, but it is not to be seen from here; the folder has "
                            "to be on a file system that all hosts share, under the same path");
    }
    given.add("manifest", to_json(read_manifest(checkpoint)));
  });
  const std::string first = read_text(seen.front(), "manifest");
  for (std::size_t rank = 1; rank < seen.size(); ++rank) {
    if (read_text(seen[rank], "manifest") == first) continue;
    throw CheckpointError(checkpoint, fmt::format(" is another checkpoint on rank {} than on rank 0; the folder has to "
                                                  "be on a file system that all hosts share",
                                                  rank));
  }
  return checkpoint;
}

}  // namespace gpipe::detail
