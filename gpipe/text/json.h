// JSON: the one reader of what somebody else wrote, which is strict, within limits, and safe whatever bytes the text is
// made of; and the writer of what is always valid UTF-8, whatever bytes its strings hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "gpipe/error.h"

namespace gpipe::detail {

// A number without a fraction is a std::uint64_t, or a std::int64_t if it has a minus sign.
using JsonScalar = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string>;

struct JsonLimits {
  std::size_t most_bytes = std::numeric_limits<std::size_t>::max();
  int most_depth = std::numeric_limits<int>::max();  // lists and objects around a value
};

// What is wrong with a text. Whoever knows where the text comes from catches it and says so in an error of its own.
struct JsonProblem : Error {
  enum Kind { kTooLong, kTooDeep, kNotUtf8, kNotJson, kNumberTooLarge, kNameTwice };

  JsonProblem(Kind what_kind, const std::string& what, std::size_t at_byte)
      : Error(what), kind(what_kind), byte(at_byte) {}

  Kind kind;
  std::size_t byte;              // at which the reader stopped, counted from 1; 0 for a text that is too long
  std::size_t invalid_utf8 = 0;  // of kNotUtf8: where the text stops being UTF-8, counted from 0
  std::string name;              // of kNameTwice
};

// Gets what a text holds, in the order of the text. `offset` is that of the last character of what is told, from 0 on.
// A receiver throws to refuse what has no place in its format: the rest is not read.
class JsonReceiver {
 public:
  JsonReceiver() = default;
  virtual ~JsonReceiver() = default;
  JsonReceiver(const JsonReceiver&) = delete;
  JsonReceiver& operator=(const JsonReceiver&) = delete;

  virtual void begin_object(std::size_t offset) = 0;
  virtual void end_object(std::size_t offset) = 0;
  virtual void begin_list(std::size_t offset) = 0;
  virtual void end_list(std::size_t offset) = 0;
  virtual void name(std::string name, std::size_t offset) = 0;
  // `fraction` is a number with a point or an exponent as it is written, and empty for everything else.
  virtual void value(JsonScalar value, std::size_t offset, std::string_view fraction) = 0;
};

// Reads a text of one JSON value. Throws JsonProblem if it is none or exceeds the limits, but not for names that occur
// twice. Takes no memory beyond that of one name or scalar.
void read_json(std::string_view text, JsonReceiver& receiver, const JsonLimits& limits = {});

// A text as a value with one meaning: no name occurs twice in an object.
// Both throw JsonProblem; see read_json.
nlohmann::json json_document(std::string_view text, const JsonLimits& limits = {});
// The names stay in the order of the text.
nlohmann::ordered_json ordered_json_document(std::string_view text, const JsonLimits& limits = {});

// Nothing if the text is no such JSON, for callers that do not tell why.
std::optional<nlohmann::json> find_json_document(std::string_view text);

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

}  // namespace gpipe::detail
