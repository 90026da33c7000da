// gpipe-train: the commands of gpipe that need libtorch. The gpipe command starts it.
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/config_file.h"
#include "cli/failure.h"
#include "cli/terminal.h"
#include "data/data_error.h"
#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/execute/freed_memory.h"
#include "gpipe/interpret/action_error.h"
#include "train/commands.h"

namespace {

using namespace gpipe::cli;

// What the command line is not to blame for; the message says what to do.
int refuse(const std::string& message, const CLI::App& app) {
  print_error(with_option_names(message, app));
  return kNegativeAnswer;
}

// The same of what every rank finds: one of them tells it.
int refuse_once(const std::string& message, const CLI::App& app) {
  return is_told_by_the_first_rank() ? kNegativeAnswer : refuse(message, app);
}

// The message of a c10::Error, or of an ActionError that carries one, as one line for the user: without libtorch's
// backtrace; for an allocation that failed, with what to do.
std::string describe_torch_failure(const std::string& message) {
  const std::string allocation = "can't allocate memory: you tried to allocate ";
  std::string line = message.substr(0, message.find("\nException raised from "));
  std::replace(line.begin(), line.end(), '\n', ' ');
  const std::size_t at = line.find(allocation);
  if (at == std::string::npos) return line;
  // "[enforce fail at alloc_cpu.cpp:66] . DefaultCPUAllocator: can't allocate memory: …": what stands before it is
  // ours.
  const std::string before = line.substr(0, std::min(line.find("[enforce fail"), at));
  const std::size_t number = at + allocation.size();
  const std::string bytes = line.substr(number, line.find_first_not_of("0123456789", number) - number);
  return before + "out of memory: " + bytes +
         " bytes could not be allocated; use a smaller model, more recompute or smaller batches";
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
    add_config_option(app);
    for (const auto add :
         {gpipe::train::add_train_command, gpipe::train::add_eval_command, gpipe::train::add_translate_command,
          gpipe::train::add_generate_command, gpipe::train::add_profile_command, gpipe::train::add_capacity_command,
          gpipe::train::add_bench_command, gpipe::train::add_inspect_command, gpipe::train::add_convert_command}) {
      add(app, chosen);
    }
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
    return error.is_missing() ? report_usage(error.what(), "") : refuse_once(error.what(), app);
  } catch (const gpipe::CheckpointError& error) {
    return refuse(error.what(), app);
  } catch (const gpipe::OutOfMemoryError& error) {
    return refuse(error.what(), app);
  } catch (const gpipe::PeerError& error) {
    return refuse(error.what(), app);
  } catch (const gpipe::FingerprintError& error) {
    return refuse_once(error.what(), app);
  } catch (const gpipe::ActionError& error) {
    return refuse(describe_torch_failure(error.what()), app);
  } catch (const c10::Error& error) {
    return refuse(describe_torch_failure(error.what_without_backtrace()), app);
  } catch (...) {
    return report_failure(app);
  }
}
