#include "cli/command_line.h"

#include <algorithm>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "cli/wrap.h"
#include "gpipe/text/nearest_name.h"

namespace gpipe::cli {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kColumn = 28;
constexpr std::size_t kIndent = 2;  // of what print_error says below its first line

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) {
    column_width(kColumn);
    label("Positionals", "Arguments");
  }

  std::string make_usage(const CLI::App*, std::string) const override { return "\nUsage: " + usage_ + "\n"; }

  // In the list of commands, the first line of a description is enough.
  std::string make_subcommand(const CLI::App* command) const override {
    const std::string description = command->get_description();
    std::ostringstream line;
    CLI::detail::format_help(line, command->get_name(), description.substr(0, description.find('\n')), 12);
    return line.str();
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_positional() ? "" : " " + option->get_type_name();
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), kWidth - kColumn);
  }

  // As CLI11's, but the commands stand before the options, and one empty line between groups is enough.
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = make_description(app) + make_usage(app, std::move(name)) + make_positionals(app) +
                       make_subcommands(app, mode) + make_groups(app, mode) + "\n" + make_footer(app);
    for (std::size_t at; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);
    return text;
  }

 private:
  std::string usage_;
};

bool asks_for_help(const CLI::App& app) {
  for (const CLI::App* command = &named_command(app); command != nullptr; command = command->get_parent()) {
    if (command->get_help_ptr() != nullptr && command->get_help_ptr()->count() > 0) return true;
  }
  return false;
}

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

std::string suggestion(const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = detail::nearest_name(name, known);
  return nearest.empty() ? "" : fmt::format("did you mean '{}'? ", nearest);
}

[[noreturn]] void refuse_option(const CLI::App& command, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& long_name : option->get_lnames()) known.push_back("--" + long_name);
  }
  throw UsageError(fmt::format("unknown option '{}' of '{}'", name, full_name(command)),
                   fmt::format("{}'{} --help' lists the options{}", suggestion(name, known), full_name(command),
                               command.get_parent() == nullptr ? "; those of a command come after its name" : ""));
}

[[noreturn]] void refuse_command(const CLI::App& app, const std::string& argument) {
  const std::vector<std::string> names = command_names(app);
  throw UsageError(fmt::format("unknown command '{}'{}", argument,
                               app.get_parent() == nullptr ? "" : fmt::format(" of '{}'", full_name(app))),
                   wrapped(fmt::format("{}the commands are {}; '{} --help' explains them", suggestion(argument, names),
                                       fmt::join(names, ", "), full_name(app)),
                           kWidth - kIndent, kIndent));
}

// Throws UsageError for the first argument of a parsed `app` that nothing took.
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
    throw UsageError(fmt::format("unexpected argument '{}' of '{}'", arguments.front(), full_name(meant)),
                     fmt::format("see '{} --help'", full_name(meant)));
  }
}

}  // namespace

std::size_t parse_choice(std::string_view word, const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  const std::string nearest = detail::nearest_name(word, words);
  throw InvalidArgument(fmt::format("'{}' is not one of {}{}", word, fmt::join(words, ", "),
                                    nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

std::string parse_path(std::string_view word) {
  if (word.empty()) throw InvalidArgument("'' is not the name of a file");
  return std::string(word);
}

void set_help(CLI::App& command, const Help& help) {
  command.group("Commands");
  command.description(help.summary + (help.details.empty() ? "" : "\n\n" + wrapped(help.details, kWidth)));
  command.formatter(std::make_shared<HelpFormatter>(help.usage));
  command.footer("Examples:\n" + help.examples);
  command.set_help_flag("-h,--help", "Print this help")->group("Other");
}

const CLI::App& named_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::string see_help(const CLI::App& app) { return fmt::format("see '{} --help'", full_name(named_command(app))); }

void parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const Error& error) {
    if (asks_for_help(app)) throw CLI::CallForHelp();
    if (dynamic_cast<const UsageError*>(&error) != nullptr) throw;
    throw UsageError(error.what(), see_help(app));
  }
  refuse_unknown_arguments(app);
}

}  // namespace gpipe::cli
