#include "gpipe/checkpoint_files/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "gpipe/checkpoint_files/manifest_seal.h"
#include "gpipe/checkpoint_files/safetensors_format.h"
#include "gpipe/checkpoint_files/strict_json.h"
#include "gpipe/text/crc32.h"
#include "gpipe/text/printable.h"
#include "gpipe/version.h"

namespace gpipe {
namespace {

using detail::crc32;
using detail::quoted_name;

constexpr const char* kFormat = "gpipe checkpoint";
constexpr std::int64_t kFormatVersion = 1;

constexpr std::string_view kManifestEnd = "\n}\n";
constexpr std::string_view kSeal = ",\n  \"crc32\": \"";
constexpr std::size_t kSealDigits = 8;

std::string seal_of(std::string_view body) { return fmt::format("{}{:08x}\"{}", kSeal, crc32(body), kManifestEnd); }

bool is_sealed(std::string_view json) {
  const std::size_t length = kSeal.size() + kSealDigits + 1 + kManifestEnd.size();
  if (json.size() < length) return false;
  const std::size_t body = json.size() - length;
  return json.substr(body) == seal_of(json.substr(0, body));
}

nlohmann::ordered_json to_json(const OptimizerGroup& group) {
  for (const auto& [name, value] : group.options) {
    if (std::isfinite(value)) continue;
    throw InvalidArgument(fmt::format("the optimizer's {} is {}, which cannot be saved", name, value));
  }
  return {{"options", group.options}, {"parameters", group.parameters}};
}

nlohmann::ordered_json to_json(const TrainingLayout& layout) {
  return {{"replicas", layout.num_replicas},
          {"workers", layout.num_workers},
          {"micro_batches", layout.num_micro_batches},
          {"schedule", layout.schedule},
          {"chunks_per_worker", layout.chunks_per_worker},
          {"layers_per_stage", layout.layers_per_stage},
          {"recompute", layout.recompute},
          {"rematerialization", layout.rematerialization}};
}

class ManifestReader {
 public:
  ManifestReader(std::string_view text, const std::string& path) : json_(text, path, "checkpoint manifest") {}

  Manifest read() const {
    const nlohmann::json& top = json_.object();
    if (json_.text(top, "format") != kFormat) json_.fail(fmt::format("its format is not \"{}\"", kFormat));
    const std::int64_t version = json_.number(top, "version");
    if (version != kFormatVersion) {
      json_.fail(fmt::format("it is of version {}, and this gpipe reads version {}", version, kFormatVersion));
    }
    Manifest manifest;
    manifest.step = json_.number(top, "step");
    manifest.pipeline_step = json_.number(top, "pipeline_step");
    const nlohmann::json& seed = json_.field(top, "seed");
    if (!seed.is_number_unsigned()) json_.fail("\"seed\" is no whole number from 0 on");
    manifest.seed = seed.get<std::uint64_t>();
    manifest.data_position = json_.text(top, "data_position");
    manifest.learning_rate = json_.text(top, "learning_rate");
    for (const auto& [key, value] : json_.map(top, "notes").items()) {
      if (!value.is_string()) json_.fail(fmt::format("its note {} is no text", quoted_name(key)));
      manifest.notes[key] = value.get<std::string>();
    }
    manifest.layout = layout(json_.map(top, "layout"));
    manifest.gpipe_version = json_.text(top, "gpipe_version");
    manifest.libtorch_version = json_.text(top, "libtorch_version");
    read_optimizer(json_.map(top, "optimizer"), manifest);
    read_files(json_.list(top, "files"), manifest);
    return manifest;
  }

 private:
  int small_number(const nlohmann::json& object, const char* key) const {
    const std::int64_t value = json_.number(object, key, "layout: ");
    if (value > std::numeric_limits<int>::max()) json_.fail(fmt::format("layout: \"{}\" is too large", key));
    return static_cast<int>(value);
  }

  std::vector<std::string> texts(const nlohmann::json& object, const char* key, const std::string& where) const {
    std::vector<std::string> texts;
    for (const nlohmann::json& value : json_.list(object, key, where)) {
      if (!value.is_string()) json_.fail(fmt::format("{}\"{}\" holds what is no text", where, key));
      texts.push_back(value.get<std::string>());
    }
    return texts;
  }

  TrainingLayout layout(const nlohmann::json& object) const {
    TrainingLayout layout;
    if (object.contains("replicas")) layout.num_replicas = small_number(object, "replicas");
    layout.num_workers = small_number(object, "workers");
    layout.num_micro_batches = small_number(object, "micro_batches");
    layout.schedule = json_.text(object, "schedule", "layout: ");
    layout.chunks_per_worker = small_number(object, "chunks_per_worker");
    for (const nlohmann::json& value : json_.list(object, "layers_per_stage", "layout: ")) {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<int>::max()) {
        json_.fail("layout: \"layers_per_stage\" holds what is no count");
      }
      layout.layers_per_stage.push_back(value.get<int>());
    }
    layout.recompute = texts(object, "recompute", "layout: ");
    layout.rematerialization = texts(object, "rematerialization", "layout: ");
    return layout;
  }

  void read_optimizer(const nlohmann::json& object, Manifest& manifest) const {
    manifest.optimizer = json_.text(object, "type", "optimizer: ");
    std::set<std::string> seen;
    for (const nlohmann::json& value : json_.list(object, "groups", "optimizer: ")) {
      const std::string where = fmt::format("group {}: ", manifest.groups.size());
      if (!value.is_object()) json_.fail(where + "it is no object");
      OptimizerGroup group;
      for (const auto& [name, option] : json_.map(value, "options", where).items()) {
        if (!option.is_number()) json_.fail(fmt::format("{}{} is no number", where, quoted_name(name)));
        group.options[name] = option.get<double>();
      }
      group.parameters = texts(value, "parameters", where);
      for (const std::string& name : group.parameters) {
        if (!seen.insert(name).second) json_.fail(fmt::format("{}{} is there twice", where, quoted_name(name)));
      }
      manifest.groups.push_back(std::move(group));
    }
  }

  void read_files(const nlohmann::json& list, Manifest& manifest) const {
    std::set<std::string> seen;
    for (const nlohmann::json& value : list) {
      const std::string where = fmt::format("file {}: ", manifest.files.size());
      if (!value.is_object()) json_.fail(where + "it is no object");
      ManifestFile file{json_.text(value, "name", where), json_.number(value, "bytes", where),
                        json_.text(value, "xxh3", where)};
      if (!detail::is_plain_file_name(file.name) || file.name == kManifestName || !seen.insert(file.name).second) {
        json_.fail(fmt::format("{}{} is no name for it", where, quoted_name(file.name)));
      }
      if (file.hash.size() != kHashDigits || file.hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
        json_.fail(fmt::format("{}its xxh3 is not {} hexadecimal digits", where, kHashDigits));
      }
      manifest.files.push_back(std::move(file));
    }
  }

  const detail::StrictJson json_;
};

}  // namespace

std::string to_json(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kFormatVersion;
  json["step"] = manifest.step;
  json["pipeline_step"] = manifest.pipeline_step;
  json["seed"] = manifest.seed;
  json["data_position"] = manifest.data_position;
  json["learning_rate"] = manifest.learning_rate;
  json["notes"] = manifest.notes;
  json["layout"] = to_json(manifest.layout);
  json["gpipe_version"] = manifest.gpipe_version;
  json["libtorch_version"] = manifest.libtorch_version;
  json["optimizer"]["type"] = manifest.optimizer;
  json["optimizer"]["groups"] = nlohmann::ordered_json::array();
  for (const OptimizerGroup& group : manifest.groups) json["optimizer"]["groups"].push_back(to_json(group));
  json["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.hash}});
  }
  try {
    return detail::seal_manifest(json.dump(2) + "\n");
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("the texts of a checkpoint must be UTF-8");
  }
}

std::string detail::seal_manifest(std::string_view json) {
  const std::string_view body = json.substr(0, json.size() - std::min(json.size(), kManifestEnd.size()));
  return std::string(body) + seal_of(body);
}

Manifest parse_manifest(std::string_view json, const std::string& path) {
  const ManifestReader reader(json, path);
  if (!is_sealed(json)) {
    throw CheckpointError(path,
                          " is damaged: it does not have the checksum at its end; resume from another checkpoint");
  }
  return reader.read();
}

const char* library_version() { return GPIPE_VERSION; }

}  // namespace gpipe
