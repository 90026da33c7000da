#include "cli/parse.h"

#include <fmt/format.h>

#include <string>

#include "cli/command.h"
#include "cli/unknown_argument.h"

namespace gpipe::cli {
namespace {

bool asks_for_help(const CLI::App& app) {
  for (const CLI::App* command = &named_command(app); command != nullptr; command = command->get_parent()) {
    if (command->get_help_ptr() != nullptr && command->get_help_ptr()->count() > 0) return true;
  }
  return false;
}

}  // namespace

std::string see_help(const CLI::App& app) {
  std::string words = "--help";
  for (const CLI::App* command = &named_command(app); command != nullptr; command = command->get_parent()) {
    words = fmt::format("{} {}", command->get_name(), words);
  }
  return fmt::format("see '{}'", words);
}

void parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const UsageError&) {
    if (asks_for_help(app)) throw CLI::CallForHelp();
    throw;
  } catch (const Error& error) {
    if (asks_for_help(app)) throw CLI::CallForHelp();
    throw UsageError(error.what(), see_help(app));
  }
  refuse_unknown_arguments(app);
}

}  // namespace gpipe::cli
