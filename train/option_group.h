// OptionGroup: options of one heading in the help, each with the name of its value.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "cli/command_line.h"
#include "train/option_value.h"

namespace gpipe::train {

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
  void add_flag(const std::string& name, bool& target, const std::string& description) const {
    command.add_flag(name, target, description)->group(heading)->default_function([&target] {
      return option_value(target);
    });
  }
};

}  // namespace gpipe::train
