#include "gpipe/checkpoint/checkpoint_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <thread>

#include "gpipe/checkpoint/hashed_file.h"
#include "gpipe/checkpoint/parallel.h"
#include "gpipe/checkpoint/written_file.h"
#include "gpipe/checkpoint_files/new_checkpoint.h"
#include "gpipe/checkpoint_files/safetensors_format.h"
#include "gpipe/os/input_file.h"
#include "gpipe/os/output_file.h"
#include "gpipe/text/printable.h"

namespace gpipe::detail {
namespace {

constexpr const char* kModelStem = "model";
constexpr const char* kOptimizerStem = "optimizer";

bool is_of(const std::string& file, const std::string& stem) { return file.compare(0, stem.size(), stem) == 0; }

ManifestFile write_index(FileSystem& files, const std::string& folder, const std::vector<ManifestFile>& shards) {
  SafetensorsIndex index;
  for (const ManifestFile& file : shards) {
    if (!is_of(file.name, kModelStem)) continue;
    const std::string path = folder + "/" + file.name;
    for (const SafetensorsEntry& entry : parse_safetensors(MappedFile(path).view(), path).entries) {
      if (!index.file_of.emplace(entry.name, file.name).second) {
        throw CheckpointError(path, fmt::format(": {} is in another shard, too; two stages hold the same weight",
                                                quoted_name(entry.name)));
      }
      index.total_bytes += entry.num_bytes();
    }
  }
  const std::string json = to_json(index);
  OutputFile file(files, folder + "/" + kIndexName);
  file.write(json.data(), json.size());
  file.finish();
  return {kIndexName, static_cast<std::int64_t>(json.size()), content_hash_of(json)};
}

void check_hash(const ManifestFile& file, const std::string& path, const ContentHash& hash) {
  if (hash.finish() == file.hash) return;
  throw CheckpointError(path,
                        " is damaged: it does not have the hash that its manifest says; resume from another "
                        "checkpoint");
}

void check_hash(const ManifestFile& file, const std::string& path) {
  ContentHash hash;
  InputFile(path).read_past(static_cast<std::size_t>(file.bytes), &hash);
  check_hash(file, path, hash);
}

// Who reads a file waits for the disk half of the time.
int num_readers() { return 2 * static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

}  // namespace

std::vector<ManifestFile> write_shards(FileSystem& files, const std::string& folder, const CheckpointSnapshot& snapshot,
                                       int num_threads) {
  std::vector<ManifestFile> written(2 * snapshot.shards.size());
  const auto write = [&](std::size_t index) {
    const StageShard& shard = snapshot.shards[index];
    const auto write_one = [&](const char* stem, const Safetensors& content) -> ManifestFile {
      const std::string name = shard_name(stem, shard.stage, snapshot.num_stages);
      const WrittenFile file = write_safetensors(files, folder + "/" + name, content);
      return {name, file.bytes, file.hash};
    };
    written[2 * index] = write_one(kModelStem, {shard.weights, snapshot.metadata});
    written[2 * index + 1] = write_one(kOptimizerStem, {shard.slots, {}});
  };
  run_parallel(snapshot.shards.size(), write, num_threads);
  return written;
}

SavedCheckpoint commit_shards(FileSystem& files, const std::string& folder, Manifest manifest,
                              const Retention& retention) {
  manifest.files.push_back(write_index(files, folder, manifest.files));
  SavedCheckpoint saved;
  saved.path = commit_checkpoint(files, folder, manifest);
  for (const ManifestFile& file : manifest.files) saved.bytes += file.bytes;
  saved.not_removed = remove_old_checkpoints(files, saved.path, retention);
  return saved;
}

std::vector<ManifestFile> model_files(const Manifest& manifest) {
  std::vector<ManifestFile> files;
  std::copy_if(manifest.files.begin(), manifest.files.end(), std::back_inserter(files),
               [](const ManifestFile& file) { return is_of(file.name, kModelStem); });
  return files;
}

void check_hashes(const std::string& checkpoint, const std::vector<ManifestFile>& files) {
  run_parallel(
      files.size(), [&](std::size_t index) { check_hash(files[index], checkpoint + "/" + files[index].name); },
      num_readers());
}

NamedTensors load_slots(const std::string& checkpoint, const Manifest& manifest,
                        const std::vector<ManifestFile>& checked,
                        const std::function<bool(const std::string&)>& wanted) {
  const std::vector<ManifestFile>& files = manifest.files;
  std::vector<NamedTensors> of_file(files.size());
  const auto read = [&](std::size_t index) {
    const ManifestFile& file = files[index];
    const std::string path = checkpoint + "/" + file.name;
    const bool is_checked =
        std::any_of(checked.begin(), checked.end(), [&](const ManifestFile& other) { return other.name == file.name; });
    if (!is_of(file.name, kOptimizerStem)) {
      if (is_checked) check_hash(file, path);
      return;
    }
    ContentHash hash;
    try {
      of_file[index] = read_safetensors(path, wanted, is_checked ? &hash : nullptr).tensors;
    } catch (const CheckpointError&) {
      if (is_checked) check_hash(file, path);  // of what is damaged, that it is comes first
      throw;
    }
    if (is_checked) check_hash(file, path, hash);
  };
  run_parallel(files.size(), read, num_readers());
  NamedTensors slots;
  for (const NamedTensors& some : of_file) slots.insert(slots.end(), some.begin(), some.end());
  return slots;
}

}  // namespace gpipe::detail
