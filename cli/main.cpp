// The gpipe command: schedules printed, proven, simulated and planned, translations scored, ranks started, without
// torch.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/program.h"
#include "cli/terminal.h"
#include "gpipe/version.h"

namespace {

using namespace gpipe::cli;

// Commands that other programs run. Those that need libtorch are in gpipe-train, so that the others start at once;
// get-data is a script.
struct Program {
  const char* path;    // from the folder of this one
  int first_argument;  // of the command line that it takes
  const char* if_missing;
};
constexpr Program kTrain = {kTrainProgram, 0, kIfTrainIsMissing};
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
                                    {"bench", "Measure steps against plain libtorch and others, side by side", kTrain},
                                    {"inspect", "Show what is in a checkpoint or a file of weights", kTrain},
                                    {"convert", "Take the weights out of a checkpoint; merge or split files", kTrain},
                                    {"get-data", "Get a data set by name, without root", kGetData}};

// So that the help lists them.
void add_handed_over_commands(CLI::App& app) {
  for (const HandedOver& command : kCommands) {
    set_help(*app.add_subcommand(command.name), {fmt::format("gpipe {}", command.name), command.description, "", ""});
  }
}

// If the first argument is one of them, becomes its program with the same arguments and does not return; returns
// otherwise. Throws UsageError if the program is not where it belongs: gpipe-train next to this one, get-data in
// libexec/gpipe.
void hand_over_command(int argc, char** argv) {
  if (argc < 2) return;
  for (const HandedOver& command : kCommands) {
    if (std::string_view(argv[1]) != command.name) continue;
    const std::string program = path_from_this_program(command.program.path);
    execv(program.c_str(), argv + command.program.first_argument);
    if (errno == ENOENT) {
      throw UsageError(fmt::format("'{}' needs {}, which is not there", command.name, program),
                       command.program.if_missing);
    }
    throw UsageError(fmt::format("{} cannot be started: {}", program, std::strerror(errno)), "");
  }
}

void add_commands(CLI::App& app, std::vector<std::string> program, Run& chosen) {
  app.allow_extras();  // refuse_unknown_arguments says what they are, better than CLI11
  app.require_subcommand(0, 1);
  add_schedule_command(app, chosen);
  add_check_command(app, chosen);
  add_simulate_command(app, chosen);
  add_plan_command(app, chosen);
  add_bleu_command(app, chosen);
  add_launch_command(app, program, chosen);
  add_verify_command(app, std::move(program), chosen);
  add_doctor_command(app, chosen);
  add_handed_over_commands(app);
  app.set_version_flag("--version", "gpipe " GPIPE_VERSION, "Print the version")->group("Other");
  set_help(app, {"gpipe COMMAND [options]",
                 "Pipeline-parallel training: schedules, proofs, simulations, plans, experiments.", "",
                 "  gpipe schedule 1f1b --stages 4 --micro-batches 8\n"
                 "  gpipe schedule 1f1b --stages 4 --micro-batches 8 | gpipe check -\n"
                 "  gpipe simulate zb-v --stages 4 --micro-batches 8\n"
                 "  gpipe plan --profile model.json --stages 4 --micro-batches 32\n"
                 "  gpipe bleu --reference english.txt output.txt\n"
                 "  gpipe train image --stages 2 --micro-batches 8\n"
                 "  gpipe launch -n 4 -- ./program\n"
                 "  gpipe verify -- ./program\n"
                 "\n"
                 "'gpipe COMMAND --help' explains a command. Exit codes: 0 done, 1 a negative\n"
                 "answer (schedule refused, memory too small, a damaged file, something that\n"
                 "doctor misses, bits that differ), 2 bad usage or input, a file or data set\n"
                 "that is not there."});
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of file sizes is an error as on a full disk
  CLI::App app("", "gpipe");
  Run chosen;
  try {
    add_commands(app, split_off_program(argc, argv), chosen);
    hand_over_command(argc, argv);
    parse_command_line(app, argc, argv);
    if (!chosen) {
      std::fputs(app.help().c_str(), stderr);
      return kBadUsage;
    }
    const int exit_code = chosen();
    flush_output();
    return exit_code;
  } catch (...) {
    return report_failure(app);
  }
}
