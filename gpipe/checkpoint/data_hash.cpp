#include "gpipe/checkpoint/data_hash.h"

#include <fmt/format.h>

#include "gpipe/checkpoint/safetensors.h"

namespace gpipe {

DataHash take_data_hash(SafetensorsHeader& header, std::string_view file) {
  const auto said = header.metadata.find(kDataHashKey);
  if (said == header.metadata.end()) return {};
  DataHash hash{said->second, ""};
  header.metadata.erase(said);
  if (content_hash_of(file.substr(static_cast<std::size_t>(header.data_start))) != hash.hash) {
    hash.problem = fmt::format(
        "its tensors do not have the hash that its metadata says (\"{}\", which a program that changes the tensors has "
        "to "
        "leave out)",
        kDataHashKey);
  }
  return hash;
}

}  // namespace gpipe
