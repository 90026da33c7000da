// The command line of a program with commands: their options, their help, and how it is read. Words are read by our own
// parsers, so that every refusal is a sentence that names the option.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/error.h"

namespace gpipe::cli {

// parse(word), for the option of that name.
template <typename Value>
Value parse_for(const std::string& name, Value (*parse)(std::string_view), std::string_view word) {
  try {
    return parse(word);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", name.substr(0, name.find(',')), error.what()));
  }
}

// `target` is assigned parse(word); anything assignable will do, std::optional to know whether the option was given.
template <typename Target, typename Value>
CLI::Option* add_value(CLI::App& command, const std::string& name, Target& target, Value (*parse)(std::string_view),
                       const std::string& description) {
  return command.add_option_function<std::string>(
      name, [&target, parse, name](const std::string& word) { target = parse_for(name, parse, word); }, description);
}

// Options of one heading in the help. `type` is what the help calls the value.
struct OptionGroup {
  CLI::App& command;
  const char* heading;

  template <typename Target, typename Value>
  CLI::Option* add(const char* type, const std::string& name, Target& target, Value (*parse)(std::string_view),
                   const std::string& description) const {
    return add_value(command, name, target, parse, description)->type_name(type)->group(heading);
  }
  // An option that may be repeated: `target` has a value for each time.
  template <typename Value>
  void add_each(const char* type, const std::string& name, std::vector<Value>& target, Value (*parse)(std::string_view),
                const std::string& description) const {
    const auto read = [&target, parse, name](const std::vector<std::string>& words) {
      for (const std::string& word : words) target.push_back(parse_for(name, parse, word));
    };
    command.add_option_function<std::vector<std::string>>(name, read, description)
        ->type_name(type)
        ->allow_extra_args(false)
        ->group(heading);
  }
  void add_flag(const std::string& name, bool& target, const std::string& description) const {
    command.add_flag(name, target, description)->group(heading);
  }
};

// The index of `word` in `words`. Throws InvalidArgument for any other word, naming the nearest one.
std::size_t parse_choice(std::string_view word, const std::vector<std::string>& words);

// Any word but the empty one, which a script with an unset variable would give.
std::string parse_path(std::string_view word);

// The look of --help: a usage line written by hand, grouped options, examples.
struct Help {
  std::string usage;     // what follows "Usage: "
  std::string summary;   // one line, shown in the list of commands too
  std::string details;   // what a first-time user has to know, a paragraph; may be empty
  std::string examples;  // command lines, one a line
};

// Gives `command` its texts and its -h. Call after the options are added: -h is listed last.
void set_help(CLI::App& command, const Help& help);

// Throws UsageError for an option that cannot be used or an argument that nothing takes, and what CLI11 throws: help
// and version, too. Who asks for help gets it, even next to an option that cannot be used.
void parse_command_line(CLI::App& app, int argc, char** argv);

// The deepest command on the command line: "image" in "gpipe train image"; `app` itself if none is.
const CLI::App& named_command(const CLI::App& app);

// "see 'gpipe train lm --help'", of the command that was named.
std::string see_help(const CLI::App& app);

}  // namespace gpipe::cli
