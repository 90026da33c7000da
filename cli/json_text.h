// JSON as the commands print it: indented, fields in the order they were added, always valid UTF-8.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpipe::cli {

inline std::string to_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace gpipe::cli
