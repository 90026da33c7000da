// JSON as text: always valid UTF-8, whatever bytes its strings hold.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gpipe {

// As commands print it: a line for each field, and a line break at the end. A template, so that fields stay in the
// order that the kind of JSON gives them.
template <typename Json>
std::string indented_json(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

// On one line, without a line break.
template <typename Json>
std::string one_line_json(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace gpipe
