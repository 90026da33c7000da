#include "cli/handed_over.h"

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

struct Program {
  const char* path;    // from the folder of this one
  int first_argument;  // of the command line that it takes
  const char* if_missing;
};
constexpr Program kTrain = {"gpipe-train", 0, "build gpipe with libtorch: make build, without GPIPE_BUILD_TORCH=OFF"};
constexpr Program kGetData = {GPIPE_LIBEXEC "/get-data", 1,
                              "install gpipe whole: cmake --install, or run scripts/get-data of its sources"};

struct HandedOver {
  const char* name;
  const char* description;
  const Program& program;
};
constexpr HandedOver kCommands[] = {{"train", "Train a model on real data, in stages", kTrain},
                                    {"eval", "Measure a trained model on its test data", kTrain},
                                    {"translate", "Translate lines into English with a trained model", kTrain},
                                    {"generate", "Continue a text with a trained language model", kTrain},
                                    {"profile", "Measure what each layer of a model costs", kTrain},
                                    {"capacity", "Find the largest models that fit given accelerators", kTrain},
                                    {"inspect", "Show what is in a checkpoint or a file of weights", kTrain},
                                    {"convert", "Take the weights out of a checkpoint; merge or split files", kTrain},
                                    {"get-data", "Get a data set by name, without root", kGetData}};

std::string place_of(const Program& program) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / program.path).lexically_normal().string();
}

}  // namespace

void add_handed_over_commands(CLI::App& app) {
  for (const HandedOver& command : kCommands) {
    set_help(*app.add_subcommand(command.name), {fmt::format("gpipe {}", command.name), command.description, "", ""});
  }
}

void hand_over_command(int argc, char** argv) {
  if (argc < 2) return;
  for (const HandedOver& command : kCommands) {
    if (std::string_view(argv[1]) != command.name) continue;
    const std::string program = place_of(command.program);
    execv(program.c_str(), argv + command.program.first_argument);
    if (errno == ENOENT) {
      throw UsageError(fmt::format("'{}' needs {}, which is not there", command.name, program),
                       command.program.if_missing);
    }
    throw UsageError(fmt::format("{} cannot be started: {}", program, std::strerror(errno)), "");
  }
}

}  // namespace gpipe::cli
