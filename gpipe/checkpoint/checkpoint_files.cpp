#include "gpipe/checkpoint/checkpoint_files.h"

#include <fmt/format.h>

#include "gpipe/checkpoint/mapped_file.h"
#include "gpipe/checkpoint/output_file.h"
#include "gpipe/checkpoint/parallel.h"
#include "gpipe/checkpoint/safetensors_header.h"
#include "gpipe/checkpoint/safetensors_index.h"
#include "gpipe/checkpoint/sha256.h"

namespace gpipe {
namespace {

constexpr const char* kModelStem = "model";
constexpr const char* kOptimizerStem = "optimizer";

bool is_of(const std::string& file, const std::string& stem) { return file.compare(0, stem.size(), stem) == 0; }

ManifestFile write_file(FileSystem& files, const std::string& folder, const std::string& name,
                        const Safetensors& content) {
  const WrittenFile written = write_safetensors(files, folder + "/" + name, content);
  return {name, written.bytes, written.sha256};
}

}  // namespace

std::vector<ManifestFile> write_shard(FileSystem& files, const std::string& folder, const StageShard& shard,
                                      int num_stages, const std::map<std::string, std::string>& metadata) {
  return {write_file(files, folder, shard_name(kModelStem, shard.stage, num_stages), {shard.weights, metadata}),
          write_file(files, folder, shard_name(kOptimizerStem, shard.stage, num_stages), {shard.slots, {}})};
}

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
  return {kIndexName, static_cast<std::int64_t>(json.size()), sha256_of(json)};
}

std::vector<ManifestFile> model_files(const Manifest& manifest) {
  std::vector<ManifestFile> files;
  for (const ManifestFile& file : manifest.files) {
    if (is_of(file.name, kModelStem)) files.push_back(file);
  }
  return files;
}

void check_hashes(const std::string& checkpoint, const std::vector<ManifestFile>& files) {
  run_parallel(files.size(), [&](std::size_t index) {
    const std::string path = checkpoint + "/" + files[index].name;
    if (sha256_of(MappedFile(path).view()) == files[index].sha256) return;
    throw CheckpointError(path,
                          " is damaged: it does not have the hash that its manifest says; resume from another "
                          "checkpoint");
  });
}

NamedTensors load_slots(const std::string& checkpoint, const Manifest& manifest) {
  NamedTensors slots;
  for (const ManifestFile& file : manifest.files) {
    if (!is_of(file.name, kOptimizerStem)) continue;
    for (auto& slot : load_safetensors(checkpoint + "/" + file.name).tensors) slots.push_back(std::move(slot));
  }
  return slots;
}

}  // namespace gpipe
