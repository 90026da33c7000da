// The gpipe command: schedules printed, proven, simulated and planned, translations scored, ranks started, without
// torch.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cli/bleu_command.h"
#include "cli/check_command.h"
#include "cli/command.h"
#include "cli/doctor_command.h"
#include "cli/failure.h"
#include "cli/handed_over.h"
#include "cli/help.h"
#include "cli/launch_command.h"
#include "cli/parse.h"
#include "cli/plan_command.h"
#include "cli/schedule_command.h"
#include "cli/simulate_command.h"
#include "cli/terminal.h"
#include "gpipe/version.h"

namespace {

using namespace gpipe::cli;

void add_commands(CLI::App& app, std::vector<std::string> program, Run& chosen) {
  app.allow_extras();  // refuse_unknown_arguments says what they are, better than CLI11
  app.require_subcommand(0, 1);
  add_schedule_command(app, chosen);
  add_check_command(app, chosen);
  add_simulate_command(app, chosen);
  add_plan_command(app, chosen);
  add_bleu_command(app, chosen);
  add_launch_command(app, std::move(program), chosen);
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
                 "\n"
                 "'gpipe COMMAND --help' explains a command. Exit codes: 0 done, 1 a negative\n"
                 "answer (schedule refused, memory too small, a damaged file, something that\n"
                 "doctor misses), 2 bad usage or input, a file or data set that is not there."});
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
