#include "gpipe/checkpoint_files/safetensors_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "gpipe/checkpoint_files/safetensors_header.h"
#include "gpipe/checkpoint_files/strict_json.h"
#include "gpipe/os/output_file.h"
#include "gpipe/text/quoted_name.h"

namespace gpipe {

std::string shard_name(const std::string& stem, int shard, int num_shards) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, shard + 1, num_shards);
}

std::string to_json(const SafetensorsIndex& index) {
  const nlohmann::json json = {{"metadata", {{"total_size", index.total_bytes}}}, {"weight_map", index.file_of}};
  return json.dump(2) + "\n";
}

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& path) {
  const StrictJson json(text, path, "index of safetensors files");
  SafetensorsIndex index;
  const auto metadata = json.object().find("metadata");
  if (metadata != json.object().end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");  // other programs write it as they like
    if (total != metadata->end() && total->is_number_unsigned()) index.total_bytes = total->get<std::int64_t>();
  }
  for (const auto& [name, file] : json.map(json.object(), "weight_map").items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      json.fail(fmt::format("{} is in {}, which is no file of the same folder", quoted_name(name),
                            file.is_string() ? quoted_name(file.get_ref<const std::string&>()) : "no file"));
    }
    index.file_of[name] = file.get<std::string>();
  }
  return index;
}

void check_shards(const SafetensorsIndex& index, const std::string& index_path,
                  const std::vector<std::pair<std::string, std::string>>& found) {
  std::map<std::string, std::string> missing = index.file_of;
  for (const auto& [tensor, file] : found) {
    const auto said = missing.find(tensor);
    if (said == missing.end() || said->second != file) {
      throw CheckpointError(directory_of(index_path) + "/" + file,
                            fmt::format(" holds {}, which {} does not look for there; fetch all of them again",
                                        quoted_name(tensor), index_path));
    }
    missing.erase(said);
  }
  if (missing.empty()) return;
  throw CheckpointError(index_path, fmt::format(" says that {} is in {}, but it is not; fetch all of them again",
                                                quoted_name(missing.begin()->first), missing.begin()->second));
}

}  // namespace gpipe
