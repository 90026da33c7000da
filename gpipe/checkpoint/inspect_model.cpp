#include "gpipe/checkpoint/inspect_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "gpipe/checkpoint/hashed_file.h"
#include "gpipe/checkpoint/model_place.h"
#include "gpipe/checkpoint_files/safetensors_format.h"
#include "gpipe/checkpoint_files/strict_json.h"
#include "gpipe/hash/content_hash.h"
#include "gpipe/os/input_file.h"
#include "gpipe/os/output_file.h"

namespace gpipe {
namespace {

using detail::directory_of;
using detail::MappedFile;

using detail::ModelPlace;
using detail::SafetensorsEntry;
using detail::SafetensorsHeader;
using detail::SafetensorsIndex;

SafetensorsHeader read_header(const MappedFile& file) { return detail::parse_safetensors(file.view(), file.path()); }

void add_tensors(const std::string& file, const SafetensorsHeader& header, std::vector<StoredTensor>& tensors) {
  for (const SafetensorsEntry& entry : header.entries) {
    tensors.push_back({file, entry.name, entry.type->name, entry.shape, entry.num_bytes()});
  }
}

// One that belongs to no checkpoint: whether it is sound is for itself to say.
void read_file(const std::string& folder, const std::string& name, StoredModel& model) {
  const MappedFile file(folder + "/" + name);
  SafetensorsHeader header = read_header(file);
  const detail::DataHash hash = detail::take_data_hash(header, file.view());
  if (!hash.hash.empty()) {
    model.files.push_back({{name, static_cast<std::int64_t>(file.size()), hash.hash}, hash.problem});
  }
  add_tensors(name, header, model.tensors);
  model.metadata.insert(header.metadata.begin(), header.metadata.end());
}

void read_set(const std::string& index_path, StoredModel& model) {
  const SafetensorsIndex index = detail::parse_safetensors_index(detail::read_json_file(index_path), index_path);
  std::set<std::string> shards;
  for (const auto& item : index.file_of) shards.insert(item.second);
  for (const std::string& shard : shards) read_file(directory_of(index_path), shard, model);
  std::vector<std::pair<std::string, std::string>> found;
  for (const StoredTensor& tensor : model.tensors) found.emplace_back(tensor.name, tensor.file);
  detail::check_shards(index, index_path, found);
}

// What is wrong with a file of a checkpoint; empty if it is as it was written.
std::string problem_of(const std::string& path, const ManifestFile& expected) {
  try {
    const MappedFile file(path);
    if (static_cast<std::int64_t>(file.size()) != expected.bytes) return fmt::format("has {} bytes", file.size());
    return content_hash_of(file.view()) == expected.hash ? "" : "has another hash";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

void read_checkpoint(const std::string& checkpoint, StoredModel& model) {
  const std::string manifest_path = checkpoint + "/" + kManifestName;
  model.manifest = parse_manifest(detail::read_json_file(manifest_path), manifest_path);
  for (const ManifestFile& file : model.manifest->files) {
    const std::string path = checkpoint + "/" + file.name;
    model.files.push_back({file, problem_of(path, file)});
    const bool has_slots = file.name.rfind("optimizer-", 0) == 0;
    if (!model.files.back().problem.empty() || (!has_slots && file.name.rfind("model-", 0) != 0)) continue;
    const SafetensorsHeader header = read_header(MappedFile(path));
    add_tensors(file.name, header, has_slots ? model.slots : model.tensors);
    if (!has_slots) model.metadata.insert(header.metadata.begin(), header.metadata.end());
  }
}

}  // namespace

bool StoredModel::is_sound() const {
  return std::all_of(files.begin(), files.end(), [](const StoredFile& file) { return file.problem.empty(); });
}

StoredModel inspect_model(const std::string& path) {
  const ModelPlace place = detail::find_model(path);
  StoredModel model;
  model.path = path;
  switch (place.kind) {
    case ModelPlace::kFile:
      model.kind = "safetensors file";
      read_file(directory_of(place.path), std::filesystem::path(place.path).filename(), model);
      break;
    case ModelPlace::kSet:
      model.kind = "safetensors files";
      read_set(place.path, model);
      break;
    case ModelPlace::kCheckpoint:
      model.kind = "checkpoint";
      model.path = place.path;
      read_checkpoint(place.path, model);
      break;
  }
  return model;
}

}  // namespace gpipe
