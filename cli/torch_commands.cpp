#include "cli/torch_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "cli/command.h"
#include "cli/help.h"

namespace gpipe::cli {
namespace {

struct TorchCommand {
  const char* name;
  const char* description;
};
constexpr TorchCommand kTorchCommands[] = {{"train", "Train a model on real data, in stages"},
                                           {"eval", "Measure a trained model on its test data"},
                                           {"translate", "Translate lines into English with a trained model"},
                                           {"generate", "Continue a text with a trained language model"},
                                           {"profile", "Measure what each layer of a model costs"},
                                           {"capacity", "Find the largest models that fit given accelerators"},
                                           {"inspect", "Show what is in a checkpoint or a file of weights"},
                                           {"convert", "Take the weights out of a checkpoint; merge or split files"}};

std::string sibling_program() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / "gpipe-train").string();
}

}  // namespace

void add_torch_commands(CLI::App& app) {
  for (const TorchCommand& command : kTorchCommands) {
    set_help(*app.add_subcommand(command.name), {fmt::format("gpipe {}", command.name), command.description, "", ""});
  }
}

void hand_over_torch_command(int argc, char** argv) {
  if (argc < 2) return;
  for (const TorchCommand& command : kTorchCommands) {
    if (std::string_view(argv[1]) != command.name) continue;
    const std::string program = sibling_program();
    execv(program.c_str(), argv);
    if (errno == ENOENT) {
      throw UsageError(fmt::format("'{}' needs {}, which is not there", command.name, program),
                       "build gpipe with libtorch: make build, without GPIPE_BUILD_TORCH=OFF");
    }
    throw UsageError(fmt::format("{} cannot be started: {}", program, std::strerror(errno)), "");
  }
}

}  // namespace gpipe::cli
