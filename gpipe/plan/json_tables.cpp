#include "gpipe/plan/json_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "gpipe/error.h"

namespace gpipe {
namespace {

using Json = nlohmann::json;

// Hands the text to the JSON parser and counts what it has taken.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  std::size_t* taken;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    ++at;
    ++*taken;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
  bool operator!=(const Cursor& other) const { return at != other.at; }
};

// The receiver of the JSON parser's events: its public methods are the parser's interface.
class TableReader {
 public:
  TableReader(std::string_view text, const std::size_t& taken) : text_(text), taken_(taken) {}

  JsonTables take() { return std::move(tables_); }

  bool null() { return scalar(nullptr, last_taken()); }
  bool boolean(bool value) { return scalar(value, last_taken()); }
  bool number_integer(std::int64_t value) { return scalar(value, last_digit()); }
  bool number_unsigned(std::uint64_t value) { return scalar(value, last_digit()); }
  bool number_float(double value, const std::string&) { return scalar(value, last_digit()); }
  bool string(std::string& value) { return scalar(std::move(value), last_taken()); }
  bool binary(Json::binary_t&) { return false; }

  bool start_object(std::size_t) {
    if (depth_ != kOutside && depth_ != kInTable) fail_shape("an object", last_taken());
    if (depth_ == kInTable) tables_.tables.back().records.emplace_back();
    ++depth_;
    return true;
  }

  bool start_array(std::size_t) {
    if (depth_ != kInTables) fail_shape("an array", last_taken());
    ++depth_;
    return true;
  }

  bool end_object() {
    (depth_ == kInRecord ? record() : tables_.top).offset = last_taken();
    --depth_;
    return true;
  }

  bool end_array() {
    --depth_;
    return true;
  }

  bool key(std::string& name) {
    if (depth_ == kInTables) {
      tables_.tables.push_back({std::move(name), last_taken(), {}});
    } else {
      record().fields.push_back({std::move(name), last_taken(), nullptr, 0});
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error);

 private:
  enum Depth { kOutside, kInTables, kInTable, kInRecord };

  JsonRecord& record() { return tables_.tables.back().records.back(); }
  std::size_t last_taken() const { return taken_ - 1; }

  // The parser knows a number's end by the character behind it, which it has taken too unless the text ends there.
  std::size_t last_digit() const {
    const char last = text_[taken_ - 1];
    return last >= '0' && last <= '9' ? taken_ - 1 : taken_ - 2;
  }

  bool scalar(JsonScalar value, std::size_t offset) {
    if (depth_ == kInTables) {
      JsonTable& table = tables_.tables.back();  // it is none
      tables_.top.fields.push_back({std::move(table.name), table.name_offset, std::move(value), offset});
      tables_.tables.pop_back();
      return true;
    }
    if (depth_ != kInRecord) fail_shape(json_shown(value), offset);
    record().fields.back().value = std::move(value);
    record().fields.back().value_offset = offset;
    return true;
  }

  [[noreturn]] void fail_shape(const std::string& got, std::size_t offset);

  std::string_view text_;
  const std::size_t& taken_;
  int depth_ = kOutside;
  JsonTables tables_;
};

void TableReader::fail_shape(const std::string& got, std::size_t offset) {
  if (depth_ == kOutside) json_fail_at(text_, offset, fmt::format("expected an object, got {}", got));
  const JsonTable& table = tables_.tables.back();
  if (depth_ == kInTables) {
    json_fail_at(text_, offset, fmt::format("{} must be an array of objects, got {}", json_quoted(table.name), got));
  }
  if (depth_ == kInTable) {
    json_fail_at(
        text_, offset,
        fmt::format("element {} of {} must be an object, got {}", table.records.size(), json_quoted(table.name), got));
  }
  json_fail_at(text_, offset,
               fmt::format("element {} of {}: {} must be a number or a string, got {}", table.records.size() - 1,
                           json_quoted(table.name), json_quoted(record().fields.back().name), got));
}

// The parser's message is "[id] parse error at line 1, column 2: what; last read: '...'"; only `what` is kept.
bool TableReader::parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
  const std::size_t offset = std::min(std::max<std::size_t>(position, 1) - 1, text_.size());
  constexpr int kNumberOverflow = 406;
  if (error.id == kNumberOverflow) json_fail_at(text_, offset, "a number is too large for a double");
  std::string what = error.what();
  what.erase(std::min(what.find("; last read"), what.size()));
  what.erase(0, what.find(": ") + 2);
  json_fail_at(text_, offset, what);
}

}  // namespace

JsonTables parse_json_tables(std::string_view text) {
  std::size_t taken = 0;
  TableReader reader(text, taken);
  Json::sax_parse(Cursor{text.data(), &taken}, Cursor{text.data() + text.size(), &taken}, &reader);
  return reader.take();
}

void json_fail_at(std::string_view text, std::size_t offset, const std::string& what) {
  const std::string_view before = text.substr(0, offset);
  const std::int64_t line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
  const std::int64_t column = static_cast<std::int64_t>(before.size() - line_begin) + 1;
  throw ParseError(fmt::format("line {}, column {}: {}", line, column, what), line, column);
}

std::string json_quoted(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  const std::string head(text.substr(0, kLongest));
  const std::string quotes = Json(head).dump(-1, ' ', false, Json::error_handler_t::ignore);
  return text.size() > kLongest ? quotes + "..." : quotes;
}

std::string json_shown(const JsonScalar& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return json_quoted(*text);
  if (std::holds_alternative<std::nullptr_t>(value)) return "null";
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  if (const auto* negative = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *negative);
  if (const auto* whole = std::get_if<std::uint64_t>(&value)) return fmt::format("{}", *whole);
  return fmt::format("{}", std::get<double>(value));
}

}  // namespace gpipe
