// gpipe-train: the commands of gpipe that need libtorch. The gpipe command starts it.
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/failure.h"
#include "cli/terminal.h"
#include "data/data_error.h"
#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/execute/freed_memory.h"
#include "gpipe/interpret/action_error.h"
#include "train/capacity_command.h"
#include "train/config_file.h"
#include "train/eval_command.h"
#include "train/inspect_command.h"
#include "train/profile_command.h"
#include "train/torch_failure.h"
#include "train/train_command.h"
#include "train/use_commands.h"

namespace {

using namespace gpipe::cli;

// What the command line is not to blame for; the message says what to do.
int refuse(const std::string& message, const CLI::App& app) {
  print_error(with_option_names(message, app));
  return kNegativeAnswer;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of file sizes is an error as on a full disk
  gpipe::keep_freed_memory();
  CLI::App app("", "gpipe");
  Run chosen;
  try {
    app.allow_extras();
    app.require_subcommand(0, 1);
    app.fallthrough();  // so that --config may stand behind the command
    gpipe::train::add_config_option(app);
    gpipe::train::add_train_command(app, chosen);
    gpipe::train::add_eval_command(app, chosen);
    gpipe::train::add_translate_command(app, chosen);
    gpipe::train::add_generate_command(app, chosen);
    gpipe::train::add_profile_command(app, chosen);
    gpipe::train::add_capacity_command(app, chosen);
    gpipe::train::add_inspect_command(app, chosen);
    gpipe::train::add_convert_command(app, chosen);
    set_help(app, {"gpipe COMMAND [options]", "The commands that need libtorch.", "", ""});
    parse_command_line(app, argc, argv);
    if (!chosen) {
      std::fputs(named_command(app).help().c_str(), stderr);
      return kBadUsage;
    }
    const int exit_code = chosen();
    flush_output();
    return exit_code;
  } catch (const gpipe::data::DataError& error) {
    return error.is_missing() ? report_usage(error.what(), "") : refuse(error.what(), app);
  } catch (const gpipe::CheckpointError& error) {
    return refuse(error.what(), app);
  } catch (const gpipe::OutOfMemoryError& error) {
    return refuse(error.what(), app);
  } catch (const gpipe::PeerError& error) {
    return refuse(error.what(), app);
  } catch (const gpipe::FingerprintError& error) {  // every rank has the same
    return is_told_by_the_first_rank() ? kNegativeAnswer : refuse(error.what(), app);
  } catch (const gpipe::ActionError& error) {
    return refuse(gpipe::train::describe_torch_failure(error.what()), app);
  } catch (const c10::Error& error) {
    return refuse(gpipe::train::describe_torch_failure(error.what_without_backtrace()), app);
  } catch (...) {
    return report_failure(app);
  }
}
