#include "gpipe/text/json_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "gpipe/text/nearest_name.h"
#include "gpipe/text/printable.h"

namespace gpipe::detail {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class TableReader : public JsonReceiver {
 public:
  TableReader(std::string_view text, const std::vector<std::string>& objects) : text_(text), objects_(objects) {}

  JsonTables take() { return std::move(tables_); }

  void begin_object(std::size_t offset) override {
    if (depth_ == kInTables || depth_ == kInObject || (depth_ == kInRecord && !expects_object())) {
      fail_shape("an object", offset);
    }
    if (depth_ == kInTable) tables_.tables.back().records.emplace_back();
    if (depth_ == kInRecord) record().fields.back().object.emplace_back();
    ++depth_;
  }

  void end_object(std::size_t offset) override {
    JsonRecord& ended = depth_ == kInTables ? tables_.top : innermost();
    ended.offset = offset;
    --depth_;
    if (depth_ == kInRecord) record().fields.back().value_offset = offset;
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
      innermost().fields.push_back({std::move(name), offset, nullptr, 0});
    }
  }

  void value(JsonScalar value, std::size_t offset, std::string_view /*fraction*/) override {
    if (depth_ == kInTables) {
      JsonTable& table = tables_.tables.back();  // it is none
      tables_.top.fields.push_back({std::move(table.name), table.name_offset, std::move(value), offset});
      tables_.tables.pop_back();
      return;
    }
    if (depth_ < kInRecord || (depth_ == kInRecord && expects_object())) fail_shape(json_shown(value), offset);
    innermost().fields.back().value = std::move(value);
    innermost().fields.back().value_offset = offset;
  }

 private:
  enum Depth { kOutside, kInTables, kInTable, kInRecord, kInObject };

  JsonRecord& record() { return tables_.tables.back().records.back(); }
  JsonRecord& innermost() { return depth_ == kInObject ? record().fields.back().object.back() : record(); }
  // Whether the value of the record's last field has to be one.
  bool expects_object() { return contains(objects_, record().fields.back().name); }

  [[noreturn]] void fail_shape(const std::string& got, std::size_t offset);

  std::string_view text_;
  const std::vector<std::string>& objects_;
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
  const bool is_object = depth_ == kInRecord && expects_object();
  json_fail_at(
      text_, offset,
      fmt::format("element {} of {}: {} must be {}, got {}", table.records.size() - 1, json_quoted(table.name),
                  json_quoted(innermost().fields.back().name), is_object ? "an object" : "a number or a string", got));
}

std::optional<double> number_of(const JsonScalar& value) {
  if (const auto* whole = std::get_if<std::uint64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* negative = std::get_if<std::int64_t>(&value)) return static_cast<double>(*negative);
  const auto* number = std::get_if<double>(&value);
  return number == nullptr ? std::nullopt : std::optional<double>(*number);
}

}  // namespace

JsonTables parse_json_tables(std::string_view text, const std::vector<std::string>& objects) {
  TableReader reader(text, objects);
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

std::string json_hint(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongest = 60;  // comparing two names takes the product of their lengths
  if (name.size() > kLongest) return "";
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format(" (did you mean {}?)", json_quoted(nearest));
}

JsonReader::JsonReader(std::string_view text, const JsonRecord& record, const JsonForm& form, std::string where)
    : text_(text), record_(record), where_(std::move(where)) {
  for (const JsonField& field : record.fields) {
    if (!contains(form.fields, field.name)) {
      fail(field.name_offset, fmt::format("unknown field {}{}; the fields of a {} are {}", json_quoted(field.name),
                                          json_hint(field.name, form.fields), form.what, fmt::join(form.fields, ", ")));
    }
    if (&field != find(field.name)) fail(field.name_offset, fmt::format("{} is given twice", json_quoted(field.name)));
  }
  for (std::size_t index_of_field = 0; index_of_field < form.first_optional; ++index_of_field) {
    const std::string& required = form.fields[index_of_field];
    if (!has(required)) fail(record.offset, fmt::format("{} is missing", json_quoted(required)));
  }
}

const JsonField* JsonReader::find(std::string_view name) const {
  const auto& fields = record_.fields;
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const JsonField& f) { return f.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

void JsonReader::fail_value(const JsonField& field, const std::string& expected) const {
  fail(field.value_offset,
       fmt::format("{} is {}; expected {}", json_quoted(field.name), json_shown(field.value), expected));
}

std::string JsonReader::string(std::string_view name) const {
  const JsonField& given = field(name);
  if (const auto* text = std::get_if<std::string>(&given.value)) return *text;
  fail_value(given, "a string");
}

double JsonReader::seconds(std::string_view name) const {
  const JsonField& given = field(name);
  const std::optional<double> number = number_of(given.value);
  if (!number || !std::isfinite(*number) || *number < 0) fail_value(given, "a number of seconds, 0 or more");
  return *number == 0 ? 0 : *number;  // no negative zero
}

double JsonReader::positive(std::string_view name) const {
  const JsonField& given = field(name);
  const std::optional<double> number = number_of(given.value);
  if (!number || !std::isfinite(*number) || !(*number > 0)) fail_value(given, "a number above 0");
  return *number;
}

std::int64_t JsonReader::bytes(std::string_view name) const {
  constexpr double kLastWhole = 9007199254740992.0;  // above, a double does not say which whole number was meant
  const JsonField& given = field(name);
  if (const auto* whole = std::get_if<std::uint64_t>(&given.value)) {
    if (const auto bytes = static_cast<std::int64_t>(*whole); bytes >= 0) return bytes;
  }
  const std::optional<double> number = number_of(given.value);
  if (number && *number >= 0 && *number <= kLastWhole && *number == std::floor(*number)) {
    return static_cast<std::int64_t>(*number);
  }
  fail_value(given, "a whole number of bytes from 0 to 2^63-1 (to 2^53 if it has a point or an exponent)");
}

int JsonReader::count(std::string_view name, int least) const {
  const JsonField& given = field(name);
  const auto* number = std::get_if<std::uint64_t>(&given.value);
  if (number == nullptr || *number > static_cast<std::uint64_t>(std::numeric_limits<int>::max()) ||
      *number < static_cast<std::uint64_t>(least)) {
    fail_value(given, fmt::format("a whole number from {} to 2^31-1", least));
  }
  return static_cast<int>(*number);
}

const JsonTable* find_json_table(const JsonTables& tables, std::string_view name) {
  for (const JsonTable& table : tables.tables) {
    if (table.name == name) return &table;
  }
  return nullptr;
}

void check_json_tables(std::string_view text, const JsonTables& tables, const JsonForm& top,
                       const std::vector<std::string>& names) {
  std::vector<std::string> known = names;
  known.insert(known.end(), top.fields.begin(), top.fields.end());
  const auto fail_unknown = [&](const std::string& name, std::size_t offset) {
    json_fail_at(text, offset,
                 fmt::format("unknown field {}{}; the fields of a {} are {}", json_quoted(name), json_hint(name, known),
                             top.what, fmt::join(known, ", ")));
  };
  for (const JsonField& field : tables.top.fields) {
    if (contains(names, field.name)) {
      json_fail_at(
          text, field.value_offset,
          fmt::format("{} must be an array of objects, got {}", json_quoted(field.name), json_shown(field.value)));
    }
    if (!contains(top.fields, field.name)) fail_unknown(field.name, field.name_offset);
  }
  for (const JsonTable& table : tables.tables) {
    if (contains(top.fields, table.name)) {
      json_fail_at(text, table.name_offset,
                   fmt::format("{} must be a number or a string, got an array", json_quoted(table.name)));
    }
    if (!contains(names, table.name)) fail_unknown(table.name, table.name_offset);
    if (&table != find_json_table(tables, table.name)) {
      json_fail_at(text, table.name_offset, fmt::format("{} is given twice", json_quoted(table.name)));
    }
  }
}

}  // namespace gpipe::detail
