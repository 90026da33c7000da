// JSON as text: always valid UTF-8, whatever bytes its strings hold.
#pragma once

#include <cstddef>
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

// An object of scalars and tables, as files have it: a line for each field, and in an array a line for each element.
template <typename Json>
std::string table_json(const Json& json) {
  std::string text;
  for (const auto& [name, value] : json.items()) {
    text += (text.empty() ? "{\n  " : ",\n  ") + one_line_json(Json(name)) + ": ";
    std::string lines;
    for (std::size_t index = 0; value.is_array() && index < value.size(); ++index) {
      lines += (index == 0 ? "[\n    " : ",\n    ") + one_line_json(value[index]);
    }
    text += lines.empty() ? one_line_json(value) : lines + "\n  ]";
  }
  return text + "\n}\n";
}

}  // namespace gpipe
