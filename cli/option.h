// Options whose words are read by our own parsers, so that every refusal is a sentence that names the option.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/error.h"

namespace gpipe::cli {

// `target` is assigned parse(word); anything assignable will do, std::optional to know whether the option was given.
template <typename Target, typename Value>
CLI::Option* add_value(CLI::App& command, const std::string& name, Target& target, Value (*parse)(std::string_view),
                       const std::string& description) {
  const auto read = [&target, parse, name](const std::string& word) {
    try {
      target = parse(word);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}", name.substr(0, name.find(',')), error.what()));
    }
  };
  return command.add_option_function<std::string>(name, read, description);
}

// The index of `word` in `words`. Throws InvalidArgument for any other word, naming the nearest one.
std::size_t parse_choice(std::string_view word, const std::vector<std::string>& words);

// Any word but the empty one, which a script with an unset variable would give.
std::string parse_path(std::string_view word);

}  // namespace gpipe::cli
