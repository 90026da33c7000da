#include "gpipe/checkpoint/checkpoint_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "gpipe/checkpoint/parallel.h"
#include "gpipe/checkpoint_files/checkpoint_lock.h"
#include "gpipe/execute/engine/engine.h"
#include "gpipe/execute/group/step_call.h"
#include "gpipe/os/output_file.h"
#include "gpipe/os/paths.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {
namespace {

namespace fs = std::filesystem;

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

constexpr auto kLookAgain = std::chrono::milliseconds(100);

// What a rank says besides its call.
struct Said {
  detail::WireRecord given;  // nothing if there is an error
  std::string error;
  bool is_bad_argument = false;
  std::exception_ptr exception;  // on the rank itself
};

Said say(const std::function<void(detail::WireRecord&)>& give) {
  Said said;
  try {
    give(said.given);
  } catch (const std::exception& error) {
    said.given = {};
    said.error = error.what();
    if (said.error.empty()) said.error = "an error without a text";
    said.is_bad_argument = dynamic_cast<const InvalidArgument*>(&error) != nullptr;
    said.exception = std::current_exception();
  }
  return said;
}

std::vector<Said> exchange(const PipelineImpl& pipeline, const std::string& name, const Said& own) {
  StepCall call;
  call.name = name;
  call.step = pipeline.step();
  detail::WireRecord record = to_record(call);
  record.add("error", own.error);
  record.add("is_bad_argument", own.is_bad_argument);
  record.append(own.given);
  std::vector<StepCall> calls;
  std::vector<detail::WireRecord> rests;
  for (const detail::WireRecord& told : pipeline.engine().group().gather(record)) {
    calls.push_back(read_step_call(told, &rests.emplace_back()));
  }
  agreed_calls(calls);  // throws if one of them is another call, whose rest would mean nothing
  std::vector<Said> said;
  for (const detail::WireRecord& rest : rests) {
    detail::WireReader reader(rest, "this is not what a rank says of a checkpoint");
    Said& one = said.emplace_back();
    one.error = reader.text("error");
    one.is_bad_argument = reader.flag("is_bad_argument");
    one.given = reader.rest();
  }
  said[static_cast<std::size_t>(pipeline.world().rank)].exception = own.exception;
  return said;
}

void throw_first(const PipelineImpl& pipeline, const std::vector<Said>& said) {
  const auto failed = std::find_if(said.begin(), said.end(), [](const Said& one) { return !one.error.empty(); });
  if (failed == said.end()) return;
  const auto rank = static_cast<int>(failed - said.begin());
  const auto own = static_cast<std::size_t>(pipeline.world().rank);
  if (said[own].exception != nullptr) std::rethrow_exception(said[own].exception);
  const std::string text =
      fmt::format("rank {} (host {}): {}", rank, pipeline.engine().group().host_of(rank), failed->error);
  if (failed->is_bad_argument) throw InvalidArgument(text);
  throw CheckpointError(text);
}

void add_files(detail::WireRecord& record, const std::vector<ManifestFile>& files) {
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

std::vector<ManifestFile> read_files(const detail::WireRecord& record) {
  detail::WireReader reader(record, "these are not files of a checkpoint");
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
std::string read_text(const detail::WireRecord& record, const std::string& name) {
  detail::WireReader reader(record, "this is not what a rank says of a checkpoint");
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

}  // namespace

std::vector<detail::WireRecord> tell_all_ranks(const PipelineImpl& pipeline, const std::string& call,
                                               const std::function<void(detail::WireRecord&)>& give) {
  std::vector<Said> said = exchange(pipeline, call, say(give));
  throw_first(pipeline, said);
  std::vector<detail::WireRecord> given;
  for (Said& one : said) given.push_back(std::move(one.given));
  return given;
}

RankSave::RankSave(const Pipeline& pipeline, const std::string& folder, const SaveOptions& options,
                   const std::function<CheckpointSnapshot()>& make_snapshot)
    : pipeline_(pipeline),
      options_(options),
      files_(options.files != nullptr ? *options.files : real_file_system()),
      commits_(pipeline->world().rank == 0) {
  const auto manifests = tell_all_ranks(*pipeline_, "saving a checkpoint", [&](detail::WireRecord& given) {
    snapshot_ = make_snapshot();
    given.add("manifest", to_json(snapshot_.manifest));
  });
  std::vector<Manifest> of_rank;
  for (const detail::WireRecord& given : manifests) {
    of_rank.push_back(parse_manifest(read_text(given, "manifest"), "a rank's manifest"));
  }
  snapshot_.manifest.groups = merge_groups(of_rank, pipeline_->world().num_stages());
  const auto made = tell_all_ranks(*pipeline_, "making a checkpoint's folder", [&](detail::WireRecord& given) {
    if (!commits_) return;
    lock_ = lock_checkpoints(files_, folder);
    temporary_ = begin_checkpoint(files_, folder, snapshot_.manifest.step);
    given.add("folder", fs::path(temporary_).filename().string());
  });
  if (!commits_) temporary_ = without_slashes(folder) + "/" + read_text(made.front(), "folder");
  written_ = std::async(std::launch::async, [this] { return write_shards(); });
}

RankSave::~RankSave() {
  if (!written_.valid()) return;
  written_.wait();
}

std::vector<ManifestFile> RankSave::write_shards() const {
  if (!is_folder(temporary_)) {
    throw CheckpointError(temporary_,
                          ": rank 0 has made this folder, but it is not to be seen from here; the folder of the "
                          "checkpoints has to be on a file system that all hosts share, under the same path");
  }
  const std::vector<StageShard>& shards = snapshot_.shards;
  std::vector<std::vector<ManifestFile>> written(shards.size());
  run_parallel(
      shards.size(),
      [&](std::size_t index) {
        written[index] = write_shard(files_, temporary_, shards[index], snapshot_.num_stages, snapshot_.metadata);
      },
      options_.num_threads);
  std::vector<ManifestFile> all;
  for (const auto& shard : written) all.insert(all.end(), shard.begin(), shard.end());
  return all;
}

bool RankSave::can_finish() const { return !pipeline_->engine().group().has_failed(); }

bool RankSave::is_ready() const { return written_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

bool RankSave::is_written() {
  const auto answers = tell_all_ranks(*pipeline_, "looking after a checkpoint",
                                      [&](detail::WireRecord& given) { given.add("is_ready", is_ready()); });
  return std::all_of(answers.begin(), answers.end(), [](const detail::WireRecord& answer) {
    return detail::WireReader(answer, "this is not what a rank says of a checkpoint").flag("is_ready");
  });
}

SavedCheckpoint RankSave::finish() {
  // They look together, so that a rank that writes for long is not taken for a dead one.
  while (!is_written()) written_.wait_for(kLookAgain);
  SavedCheckpoint saved;
  try {
    const auto shards = tell_all_ranks(*pipeline_, "ending a checkpoint",
                                       [&](detail::WireRecord& given) { add_files(given, written_.get()); });
    const auto told = tell_all_ranks(*pipeline_, "putting a checkpoint in place", [&](detail::WireRecord& given) {
      if (!commits_) return;
      saved = commit(shards);
      given.add("folder", fs::path(saved.path).filename().string());
      given.add("bytes", saved.bytes);
      given.add("not_removed", saved.not_removed);
      given.add("not_locked", lock_->problem());
    });
    detail::WireReader reader(told.front(), "this is not a saved checkpoint");
    saved.path = directory_of(temporary_) + "/" + reader.text("folder");
    saved.bytes = reader.integer<std::int64_t>("bytes", 0);
    saved.not_removed = reader.texts("not_removed");
    saved.not_locked = reader.text("not_locked");
    reader.finish();
  } catch (...) {
    if (commits_ && saved.path.empty()) discard_checkpoint(files_, temporary_);
    throw;
  }
  return saved;
}

SavedCheckpoint RankSave::commit(const std::vector<detail::WireRecord>& shards) const {
  Manifest manifest = snapshot_.manifest;
  for (const detail::WireRecord& of_rank : shards) {
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
  manifest.files.push_back(write_index(files_, temporary_, manifest.files));
  SavedCheckpoint saved;
  saved.path = commit_checkpoint(files_, temporary_, manifest);
  for (const ManifestFile& file : manifest.files) saved.bytes += file.bytes;
  saved.not_removed = remove_old_checkpoints(files_, saved.path, options_.retention);
  return saved;
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

Manifest read_checked_manifest(const Pipeline& pipeline, const std::string& checkpoint) {
  Manifest manifest;
  const auto read = [&] {
    manifest = read_manifest(checkpoint);
    check_hashes(checkpoint, own_share(*pipeline, manifest.files));
  };
  if (pipeline->world().size == 1) {
    read();
  } else {
    tell_all_ranks(*pipeline, "checking a checkpoint", [&](detail::WireRecord&) { read(); });
  }
  return manifest;
}

std::string agree_on_checkpoint(const PipelineImpl& pipeline, const std::string& path) {
  const bool decides = pipeline.world().rank == 0;
  const auto answers = tell_all_ranks(pipeline, "loading a checkpoint", [&](detail::WireRecord& given) {
    if (!decides) return;
    const std::string resolved = resolve_checkpoint(path);
    given.add("found", is_there(path + "/" + kManifestName) ? "" : fs::path(resolved).filename().string());
  });
  const std::string found = read_text(answers.front(), "found");
  const std::string checkpoint = found.empty() ? without_slashes(path) : without_slashes(path) + "/" + found;
  const auto seen = tell_all_ranks(pipeline, "looking for a checkpoint", [&](detail::WireRecord& given) {
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

}  // namespace gpipe
