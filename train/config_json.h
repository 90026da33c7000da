// A configuration in JSON as items of CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string_view>
#include <vector>

namespace gpipe::train {

// The fields of the one object that `text` holds, in their order. Throws ParseError with the line for text that is not
// such JSON, a field given twice, and a value that is no number, string, boolean or list of those.
std::vector<CLI::ConfigItem> parse_config_json(std::string_view text);

}  // namespace gpipe::train
