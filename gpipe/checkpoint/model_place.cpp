#include "gpipe/checkpoint/model_place.h"

#include <filesystem>

#include "gpipe/checkpoint_files/checkpoint_folder.h"
#include "gpipe/os/input_file.h"

namespace gpipe::detail {

ModelPlace find_model(const std::string& path) {
  if (!is_folder(path)) {
    const bool is_index = std::filesystem::path(path).extension() == ".json";
    return {is_index ? ModelPlace::kSet : ModelPlace::kFile, path};
  }
  if (!is_there(path + "/" + kManifestName)) {
    const std::string index = path + "/" + kIndexName;
    if (is_there(index)) return {ModelPlace::kSet, index};
    const std::string single = path + "/model.safetensors";
    if (is_there(single)) return {ModelPlace::kFile, single};
  }
  return {ModelPlace::kCheckpoint, resolve_checkpoint(path)};
}

}  // namespace gpipe::detail
