// OptionGroup: options of one heading in the help, each with the name of its value.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cli/command_line.h"

namespace gpipe::train {

// The value of an option as text, whether it was given or not: the shortest that tells any two values apart.
// Enumerators are said by their `name`.
template <typename Value>
std::string option_value(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return name(value);
  } else {
    return fmt::format("{}", value);
  }
}

template <typename Value>
std::string option_value(const std::vector<Value>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

template <typename Value>
std::string option_value(const std::optional<Value>& value) {
  return value ? option_value(*value) : "by default";
}

struct OptionGroup {
  CLI::App& command;
  const char* heading;

  // See cli::add_value; `type` is what the help calls the value. What CLI11 calls the default is the target's value
  // when it is captured.
  template <typename Target, typename Value>
  CLI::Option* add(const char* type, const std::string& name, Target& target, Value (*parse)(std::string_view),
                   const std::string& description) const {
    return cli::add_value(command, name, target, parse, description)
        ->type_name(type)
        ->group(heading)
        ->default_function([&target] { return option_value(target); });
  }
  // The same; the help shows the value that the target has now, as the default.
  template <typename Target, typename Value>
  CLI::Option* add_default(const char* type, const std::string& name, Target& target, Value (*parse)(std::string_view),
                           const std::string& description) const {
    const char* const blank = description.empty() ? "" : " ";
    return add(type, name, target, parse, fmt::format("{}{}[{}]", description, blank, option_value(target)));
  }
  void add_flag(const std::string& name, bool& target, const std::string& description) const {
    command.add_flag(name, target, description)->group(heading)->default_function([&target] {
      return option_value(target);
    });
  }
};

}  // namespace gpipe::train
