#include "gpipe/text/json_tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpipe/error.h"
#include "gpipe/text/quoted_name.h"

namespace gpipe {
namespace {

class TableReader : public JsonReceiver {
 public:
  explicit TableReader(std::string_view text) : text_(text) {}

  JsonTables take() { return std::move(tables_); }

  void begin_object(std::size_t offset) override {
    if (depth_ != kOutside && depth_ != kInTable) fail_shape("an object", offset);
    if (depth_ == kInTable) tables_.tables.back().records.emplace_back();
    ++depth_;
  }

  void end_object(std::size_t offset) override {
    (depth_ == kInRecord ? record() : tables_.top).offset = offset;
    --depth_;
  }

  void begin_list(std::size_t offset) override {
    if (depth_ != kInTables) fail_shape("an array", offset);
    ++depth_;
  }

  void end_list(std::size_t /*offset*/) override { --depth_; }

  void name(std::string name, std::size_t offset) override {
    if (depth_ == kInTables) {
      tables_.tables.push_back({std::move(name), offset, {}});
    } else {
      record().fields.push_back({std::move(name), offset, nullptr, 0});
    }
  }

  void value(JsonScalar value, std::size_t offset, std::string_view /*fraction*/) override {
    if (depth_ == kInTables) {
      JsonTable& table = tables_.tables.back();  // it is none
      tables_.top.fields.push_back({std::move(table.name), table.name_offset, std::move(value), offset});
      tables_.tables.pop_back();
      return;
    }
    if (depth_ != kInRecord) fail_shape(json_shown(value), offset);
    record().fields.back().value = std::move(value);
    record().fields.back().value_offset = offset;
  }

 private:
  enum Depth { kOutside, kInTables, kInTable, kInRecord };

  JsonRecord& record() { return tables_.tables.back().records.back(); }

  [[noreturn]] void fail_shape(const std::string& got, std::size_t offset);

  std::string_view text_;
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

}  // namespace

JsonTables parse_json_tables(std::string_view text) {
  TableReader reader(text);
  try {
    read_json(text, reader);
  } catch (const JsonProblem& problem) {
    std::string what = problem.what();
    what.erase(std::min(what.find("; last read"), what.size()));
    json_fail_at(text, std::min(std::max<std::size_t>(problem.byte, 1) - 1, text.size()), what);
  }
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
  return quoted_name(text, kLongest);
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
