#include "train/inspect_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "gpipe/checkpoint/content_hash.h"
#include "gpipe/checkpoint_files/safetensors_format.h"
#include "gpipe/checkpoint_files/strict_json.h"
#include "gpipe/gpipe.h"
#include "gpipe/os/input_file.h"
#include "gpipe/os/output_file.h"
#include "gpipe/text/json.h"
#include "gpipe/text/layout.h"
#include "gpipe/text/printable.h"
#include "train/checkpoint_dir.h"

namespace gpipe::train {
namespace {

using nlohmann::ordered_json;

// In a folder, as load_weights looks for it.
constexpr const char* kSingleName = "model.safetensors";

struct InspectedTensor {
  std::string file;
  SafetensorsEntry entry;
};

struct InspectedFile {
  ManifestFile expected;
  std::string problem;  // empty if it is sound
};

// What lies at a path, as far as it can be read without a tensor.
struct Inspection {
  std::string path;
  std::string kind;
  std::vector<InspectedTensor> tensors;
  std::vector<InspectedTensor> slots;
  std::map<std::string, std::string> metadata;
  std::optional<Manifest> manifest;
  std::vector<InspectedFile> files;  // those whose hash is known

  bool is_sound() const {
    return std::all_of(files.begin(), files.end(), [](const InspectedFile& file) { return file.problem.empty(); });
  }
};

std::int64_t total_bytes(const std::vector<InspectedTensor>& tensors) {
  std::int64_t bytes = 0;
  for (const InspectedTensor& tensor : tensors) bytes += tensor.entry.num_bytes();
  return bytes;
}

SafetensorsHeader read_header(const MappedFile& file) { return parse_safetensors(file.view(), file.path()); }

void add_tensors(const std::string& name, SafetensorsHeader header, std::vector<InspectedTensor>& tensors,
                 std::map<std::string, std::string>& metadata) {
  for (SafetensorsEntry& entry : header.entries) tensors.push_back({name, std::move(entry)});
  metadata.insert(header.metadata.begin(), header.metadata.end());
}

// One that belongs to no checkpoint: whether it is sound is for itself to say.
void read_file(const std::string& folder, const std::string& name, Inspection& inspection) {
  const MappedFile file(folder + "/" + name);
  SafetensorsHeader header = read_header(file);
  const DataHash hash = take_data_hash(header, file.view());
  if (!hash.hash.empty()) {
    inspection.files.push_back({{name, static_cast<std::int64_t>(file.size()), hash.hash}, hash.problem});
  }
  add_tensors(name, std::move(header), inspection.tensors, inspection.metadata);
}

void read_set(const std::string& index_path, Inspection& inspection) {
  const SafetensorsIndex index = parse_safetensors_index(read_json_file(index_path), index_path);
  std::set<std::string> shards;
  for (const auto& item : index.file_of) shards.insert(item.second);
  for (const std::string& shard : shards) read_file(directory_of(index_path), shard, inspection);
  std::vector<std::pair<std::string, std::string>> found;
  for (const InspectedTensor& tensor : inspection.tensors) found.emplace_back(tensor.entry.name, tensor.file);
  check_shards(index, index_path, found);
}

InspectedFile inspect_file(const std::string& folder, const ManifestFile& expected) {
  try {
    const MappedFile file(folder + "/" + expected.name);
    if (static_cast<std::int64_t>(file.size()) != expected.bytes) {
      return {expected, fmt::format("has {} bytes", file.size())};
    }
    return {expected, content_hash_of(file.view()) == expected.hash ? "" : "has another hash"};
  } catch (const CheckpointError& error) {
    return {expected, error.what()};
  }
}

void read_checkpoint(const std::string& path, Inspection& inspection) {
  const std::string manifest_path = path + "/" + kManifestName;
  inspection.manifest = parse_manifest(read_json_file(manifest_path), manifest_path);
  for (const ManifestFile& file : inspection.manifest->files) {
    inspection.files.push_back(inspect_file(path, file));
    if (!inspection.files.back().problem.empty()) continue;
    const auto read = [&] { return read_header(MappedFile(path + "/" + file.name)); };
    std::map<std::string, std::string> ignored;
    if (file.name.rfind("optimizer-", 0) == 0) add_tensors(file.name, read(), inspection.slots, ignored);
    if (file.name.rfind("model-", 0) == 0) add_tensors(file.name, read(), inspection.tensors, inspection.metadata);
  }
}

Inspection inspect(const std::string& path) {
  Inspection inspection;
  inspection.path = path;
  if (!is_folder(path)) {
    const bool is_index = std::filesystem::path(path).extension() == ".json";
    inspection.kind = is_index ? "safetensors files" : "safetensors file";
    if (is_index) {
      read_set(path, inspection);
    } else {
      read_file(directory_of(path), std::filesystem::path(path).filename(), inspection);
    }
    return inspection;
  }
  if (!is_there(path + "/" + kManifestName) && is_there(path + "/" + kIndexName)) {
    inspection.kind = "safetensors files";
    read_set(path + "/" + kIndexName, inspection);
    return inspection;
  }
  if (!is_there(path + "/" + kManifestName) && is_there(path + "/" + kSingleName)) {
    inspection.kind = "safetensors file";
    read_file(path, kSingleName, inspection);
    return inspection;
  }
  inspection.kind = "checkpoint";
  inspection.path = resolve_checkpoint(path);
  read_checkpoint(inspection.path, inspection);
  return inspection;
}

// How often each slot occurs: "exp_avg" of 12 parameters.
std::map<std::string, int> slot_counts(const Inspection& inspection) {
  std::map<std::string, int> counts;
  for (const InspectedTensor& slot : inspection.slots) {
    ++counts[slot.entry.name.substr(slot.entry.name.rfind('/') + 1)];
  }
  return counts;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string describe_manifest(const Inspection& inspection) {
  const Manifest& manifest = *inspection.manifest;
  std::string text = fmt::format(
      "step {}, seed {}, saved by gpipe {} with libtorch {}\n{}{} worker{}, {} micro-batches, {}; layers a stage: {}\n",
      manifest.step, manifest.seed, manifest.gpipe_version, manifest.libtorch_version,
      manifest.layout.num_replicas == 1 ? "" : fmt::format("{} replicas of ", manifest.layout.num_replicas),
      manifest.layout.num_workers, manifest.layout.num_workers == 1 ? "" : "s", manifest.layout.num_micro_batches,
      manifest.layout.schedule,
      manifest.layout.layers_per_stage.empty() ? "not chosen yet"
                                               : fmt::format("{}", fmt::join(manifest.layout.layers_per_stage, ", ")));
  if (!manifest.data_position.empty()) text += fmt::format("data position: {}\n", manifest.data_position);
  if (!manifest.learning_rate.empty()) text += fmt::format("learning rate: {}\n", manifest.learning_rate);
  text += fmt::format("optimizer {}", manifest.optimizer);
  for (const auto& [slot, count] : slot_counts(inspection)) text += fmt::format(", {} of {}", slot, count);
  text += fmt::format(", {}\n", cli::format_bytes(total_bytes(inspection.slots)));
  for (const OptimizerGroup& group : manifest.groups) {
    text += fmt::format("  {} parameters:", group.parameters.size());
    for (const auto& [name, value] : group.options) text += fmt::format(" {} {}", name, value);
    text += "\n";
  }
  return text;
}

std::string describe_files(const std::vector<InspectedFile>& files) {
  std::vector<std::vector<std::string>> rows;
  for (const InspectedFile& file : files) {
    rows.push_back({printable(file.expected.name), cli::format_bytes(file.expected.bytes),
                    file.expected.hash.substr(0, 16), file.problem.empty() ? "sound" : "DAMAGED: " + file.problem});
  }
  return "\n" + to_table({{"file", Align::kLeft}, {"size"}, {"xxh3", Align::kLeft}, {"", Align::kLeft}}, rows) + "\n";
}

std::string describe(const Inspection& inspection) {
  std::string text = fmt::format("{}: {}\n", inspection.path, inspection.kind);
  if (inspection.manifest) text += describe_manifest(inspection);
  if (!inspection.files.empty()) text += describe_files(inspection.files);
  for (const auto& [key, value] : inspection.metadata) text += fmt::format("{}: {}\n", key, value);
  std::vector<std::vector<std::string>> rows;
  for (const InspectedTensor& tensor : inspection.tensors) {
    const std::string name = quoted_name(tensor.entry.name);
    rows.push_back({name.substr(1, name.size() - 2), tensor.entry.type->name, shape_text(tensor.entry.shape),
                    cli::format_bytes(tensor.entry.num_bytes())});
  }
  text += to_table({{"tensor", Align::kLeft}, {"dtype", Align::kLeft}, {"shape", Align::kLeft}, {"size"}}, rows);
  return text + fmt::format("\n{} tensors, {}\n", inspection.tensors.size(),
                            cli::format_bytes(total_bytes(inspection.tensors)));
}

ordered_json to_json(const std::vector<InspectedTensor>& tensors) {
  ordered_json list = ordered_json::array();
  for (const InspectedTensor& tensor : tensors) {
    list.push_back({{"name", tensor.entry.name},
                    {"dtype", tensor.entry.type->name},
                    {"shape", tensor.entry.shape},
                    {"bytes", tensor.entry.num_bytes()},
                    {"file", tensor.file}});
  }
  return list;
}

ordered_json to_json(const Inspection& inspection) {
  ordered_json json = {{"path", inspection.path}, {"kind", inspection.kind}};
  if (inspection.manifest) json["manifest"] = ordered_json::parse(gpipe::to_json(*inspection.manifest));
  if (inspection.manifest) json["slots"] = to_json(inspection.slots);
  if (!inspection.files.empty()) {
    json["sound"] = inspection.is_sound();
    json["problems"] = ordered_json::object();
    for (const InspectedFile& file : inspection.files) {
      if (!file.problem.empty()) json["problems"][file.expected.name] = file.problem;
    }
  }
  json["metadata"] = inspection.metadata;
  json["tensors"] = to_json(inspection.tensors);
  json["total_bytes"] = total_bytes(inspection.tensors);
  return json;
}

struct InspectCommand {
  std::string path;
  bool json = false;
};

int run_inspect(const InspectCommand& command) {
  cli::require_input(command.path);
  const bool is_another = warn_of_damaged(command.path);
  const Inspection inspection = inspect(command.path);
  // Names and texts in it are of unknown origin.
  cli::print(printable(command.json ? indented_json(to_json(inspection)) : describe(inspection)));
  return inspection.is_sound() && !is_another ? cli::kDone : cli::kNegativeAnswer;
}

struct ConvertCommand {
  std::string from;
  std::string to;
  std::int64_t shard_bytes = 0;
  bool force = false;
};

// Of the set that lies in a folder, sound or not; none if there is none.
std::set<std::string> shards_in(const std::string& folder) {
  std::set<std::string> shards;
  try {
    const std::string path = folder + "/" + kIndexName;
    for (const auto& item : parse_safetensors_index(read_json_file(path), path).file_of) shards.insert(item.second);
  } catch (const CheckpointError&) {  // NOLINT(bugprone-empty-catch) then nothing is known to be a part of it
  }
  return shards;
}

// Removes the parts of a set that was there before.
void write_set(const std::string& folder, const Safetensors& content, std::int64_t shard_bytes) {
  std::set<std::string> old_shards = shards_in(folder);
  save_safetensors_set(folder, content, shard_bytes);
  for (const std::string& shard : shards_in(folder)) old_shards.erase(shard);
  std::error_code ignored;
  for (const std::string& shard : old_shards) {
    const std::string path = folder + "/" + shard;
    if (look_at_output(path).kind == OutputKind::kPlainFile) std::filesystem::remove(path, ignored);
  }
}

int run_convert(const ConvertCommand& command) {
  namespace fs = std::filesystem;
  cli::require_input(command.from);
  warn_of_damaged(command.from);
  const Safetensors content = load_model(command.from);
  const bool is_set = command.shard_bytes != 0;
  const std::string target = is_set ? command.to + "/" + kIndexName : command.to;
  if (is_set) {
    if (is_there(command.to + "/" + kManifestName) || !checkpoints_in(command.to).empty()) {
      throw cli::UsageError(fmt::format("'{}' holds checkpoints", command.to), "name another folder");
    }
    std::error_code error;
    fs::create_directories(command.to, error);
    if (error) throw cli::UsageError(fmt::format("'{}': {}", command.to, error.message()), "name another folder");
    cli::check_replaced_file(target, command.force);
    write_set(command.to, content, command.shard_bytes);
  } else {
    if (is_folder(command.to)) {
      throw cli::UsageError(fmt::format("'{}' is a folder", command.to),
                            "name a file, or add --shard-size for a folder");
    }
    cli::check_replaced_file(target, command.force);
    save_safetensors(command.to, content);
  }
  cli::print(fmt::format("{} tensors in {}\n", content.tensors.size(), target));
  return cli::kDone;
}

}  // namespace

void add_inspect_command(CLI::App& app, cli::Run& chosen) {
  auto options = std::make_shared<InspectCommand>();
  CLI::App& command = *app.add_subcommand("inspect");
  command.add_option("PATH", options->path, "A safetensors file, an index, a checkpoint or a folder of them")
      ->type_name("")
      ->required();
  command.add_flag("--json", options->json, "Print JSON");
  cli::set_help(command,
                {"gpipe inspect PATH [--json]", "Show what is in a checkpoint or a file of weights",
                 "Names, types, shapes and sizes of the tensors; of a checkpoint also its step, its optimizer, and "
                 "whether every file has the hash that it should. Exits with 1 if one has not, or if a newer "
                 "checkpoint is damaged.",
                 "  gpipe inspect run\n  gpipe inspect model.safetensors --json"});
  command.callback([&chosen, options] { chosen = [options] { return run_inspect(*options); }; });
}

void add_convert_command(CLI::App& app, cli::Run& chosen) {
  auto options = std::make_shared<ConvertCommand>();
  CLI::App& command = *app.add_subcommand("convert");
  command.add_option("FROM", options->from, "A safetensors file, an index, a checkpoint or a folder of them")
      ->type_name("")
      ->required();
  command.add_option("TO", options->to, "The file, or with --shard-size the folder, to write")
      ->type_name("")
      ->required();
  cli::add_value(command, "--shard-size", options->shard_bytes, cli::parse_bytes,
                 "Several files of at most this size, such as 2GiB, and their index")
      ->type_name("SIZE");
  command.add_flag("--force", options->force, "Replace plain files that are there already");
  cli::set_help(command,
                {"gpipe convert FROM TO [options]", "Take the weights out of a checkpoint; merge or split files",
                 "The weights only, without the state of the optimizer.",
                 "  gpipe convert run model.safetensors\n  gpipe convert model.safetensors parts --shard-size 100MiB"});
  command.callback([&chosen, options] { chosen = [options] { return run_convert(*options); }; });
}

}  // namespace gpipe::train
