#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "gpipe/gpipe.h"
#include "train/checkpoint_dir.h"
#include "train/commands.h"

namespace gpipe::train {
namespace {

using nlohmann::ordered_json;

std::int64_t total_bytes(const std::vector<StoredTensor>& tensors) {
  std::int64_t bytes = 0;
  for (const StoredTensor& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

// How often each slot occurs: "exp_avg" of 12 parameters.
std::map<std::string, int> slot_counts(const StoredModel& model) {
  std::map<std::string, int> counts;
  for (const StoredTensor& slot : model.slots) ++counts[slot.name.substr(slot.name.rfind('/') + 1)];
  return counts;
}

std::string describe_manifest(const StoredModel& model) {
  const Manifest& manifest = *model.manifest;
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
  for (const auto& [slot, count] : slot_counts(model)) text += fmt::format(", {} of {}", slot, count);
  text += fmt::format(", {}\n", cli::format_bytes(total_bytes(model.slots)));
  for (const OptimizerGroup& group : manifest.groups) {
    text += fmt::format("  {} parameters:", group.parameters.size());
    for (const auto& [name, value] : group.options) text += fmt::format(" {} {}", name, value);
    text += "\n";
  }
  return text;
}

std::string describe_files(const std::vector<StoredFile>& files) {
  std::vector<std::vector<std::string>> rows;
  for (const StoredFile& file : files) {
    rows.push_back({cli::printable(file.expected.name), cli::format_bytes(file.expected.bytes),
                    file.expected.hash.substr(0, 16), file.problem.empty() ? "sound" : "DAMAGED: " + file.problem});
  }
  return "\n" + cli::to_table({"<file", "size", "<xxh3", "<"}, rows) + "\n";
}

std::string describe(const StoredModel& model) {
  std::string text = fmt::format("{}: {}\n", model.path, model.kind);
  if (model.manifest) text += describe_manifest(model);
  if (!model.files.empty()) text += describe_files(model.files);
  for (const auto& [key, value] : model.metadata) text += fmt::format("{}: {}\n", key, value);
  std::vector<std::vector<std::string>> rows;
  for (const StoredTensor& tensor : model.tensors) {
    rows.push_back({cli::printable_name(tensor.name), tensor.type, fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
                    cli::format_bytes(tensor.bytes)});
  }
  text += cli::to_table({"<tensor", "<dtype", "<shape", "size"}, rows);
  return text + fmt::format("\n{} tensors, {}\n", model.tensors.size(), cli::format_bytes(total_bytes(model.tensors)));
}

ordered_json to_json(const std::vector<StoredTensor>& tensors) {
  ordered_json list = ordered_json::array();
  for (const StoredTensor& tensor : tensors) {
    list.push_back({{"name", tensor.name},
                    {"dtype", tensor.type},
                    {"shape", tensor.shape},
                    {"bytes", tensor.bytes},
                    {"file", tensor.file}});
  }
  return list;
}

std::string to_json(const StoredModel& model) {
  ordered_json json = {{"path", model.path}, {"kind", model.kind}};
  if (model.manifest) json["manifest"] = ordered_json::parse(gpipe::to_json(*model.manifest));
  if (model.manifest) json["slots"] = to_json(model.slots);
  if (!model.files.empty()) {
    json["sound"] = model.is_sound();
    json["problems"] = ordered_json::object();
    for (const StoredFile& file : model.files) {
      if (!file.problem.empty()) json["problems"][file.expected.name] = file.problem;
    }
  }
  json["metadata"] = model.metadata;
  json["tensors"] = to_json(model.tensors);
  json["total_bytes"] = total_bytes(model.tensors);
  return json.dump(2, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
}

struct InspectCommand {
  std::string path;
  bool json = false;
};

int run_inspect(const InspectCommand& command) {
  cli::require_input(command.path);
  const bool is_another = warn_of_damaged(command.path);
  const StoredModel model = inspect_model(command.path);
  // Names and texts in it are of unknown origin.
  cli::print(cli::printable(command.json ? to_json(model) : describe(model)));
  return model.is_sound() && !is_another ? cli::kDone : cli::kNegativeAnswer;
}

struct ConvertCommand {
  std::string from;
  std::string to;
  std::int64_t shard_bytes = 0;
  bool force = false;
};

// Removes the parts of a set that was there before.
void write_set(const std::string& folder, const Safetensors& content, std::int64_t shard_bytes) {
  const std::vector<std::string> old_files = safetensors_set_files(folder);
  save_safetensors_set(folder, content, shard_bytes);
  const std::vector<std::string> files = safetensors_set_files(folder);
  std::error_code ignored;
  for (const std::string& file : old_files) {
    const std::filesystem::path path = folder + "/" + file;
    const bool is_plain = std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored));
    if (is_plain && std::count(files.begin(), files.end(), file) == 0) std::filesystem::remove(path, ignored);
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
    if (cli::is_there(command.to + "/" + kManifestName) || !checkpoints_in(command.to).empty()) {
      throw cli::UsageError(fmt::format("'{}' holds checkpoints", command.to), "name another folder");
    }
    std::error_code error;
    fs::create_directories(command.to, error);
    if (error) throw cli::UsageError(fmt::format("'{}': {}", command.to, error.message()), "name another folder");
    cli::check_replaced_file(target, command.force);
    write_set(command.to, content, command.shard_bytes);
  } else {
    if (cli::is_folder(command.to)) {
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
