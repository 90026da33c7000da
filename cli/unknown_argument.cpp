#include "cli/unknown_argument.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/command.h"
#include "gpipe/text/nearest_name.h"

namespace gpipe::cli {
namespace {

bool is_option(const std::string& argument) { return argument.size() > 1 && argument[0] == '-'; }

std::string full_name(const CLI::App& command) {
  return command.get_parent() == nullptr ? command.get_name()
                                         : full_name(*command.get_parent()) + " " + command.get_name();
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  return names;
}

std::string suggestion(const std::string& nearest) {
  return nearest.empty() ? "" : fmt::format("did you mean '{}'? ", nearest);
}

[[noreturn]] void refuse_option(const CLI::App& command, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& long_name : option->get_lnames()) known.push_back("--" + long_name);
  }
  throw UsageError(
      fmt::format("unknown option '{}' of '{}'", name, full_name(command)),
      fmt::format("{}'{} --help' lists the options{}", suggestion(nearest_name(name, known)), full_name(command),
                  command.get_parent() == nullptr ? "; those of a command come after its name" : ""));
}

[[noreturn]] void refuse_command(const CLI::App& app, const std::string& argument) {
  const std::vector<std::string> names = command_names(app);
  throw UsageError(fmt::format("unknown command '{}'{}", argument,
                               app.get_parent() == nullptr ? "" : fmt::format(" of '{}'", full_name(app))),
                   fmt::format("{}the commands are {}; '{} --help' explains them",
                               suggestion(nearest_name(argument, names)), fmt::join(names, ", "), full_name(app)));
}

[[noreturn]] void refuse_extra(const CLI::App& command, const std::string& argument) {
  throw UsageError(fmt::format("unexpected argument '{}' of '{}'", argument, full_name(command)),
                   fmt::format("see '{} --help'", full_name(command)));
}

}  // namespace

const CLI::App& named_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

void refuse_unknown_arguments(const CLI::App& app) {
  const CLI::App& named = named_command(app);
  for (const CLI::App* command = &named; command != nullptr; command = command->get_parent()) {
    std::vector<std::string> arguments = command->remaining();
    arguments.erase(std::remove(arguments.begin(), arguments.end(), "--"), arguments.end());
    if (arguments.empty()) continue;
    // Where arguments fall through to the program, they were meant for the command that was named.
    const CLI::App& meant = app.get_fallthrough() ? named : *command;
    // A mistyped option leaves its value behind as well: the option is the one to name.
    const auto option = std::find_if(arguments.begin(), arguments.end(), is_option);
    const bool names_no_command = &meant == &named && !command_names(named).empty();
    if (names_no_command && !is_option(arguments.front())) refuse_command(named, arguments.front());
    if (option != arguments.end()) refuse_option(meant, *option);
    refuse_extra(meant, arguments.front());
  }
}

}  // namespace gpipe::cli
