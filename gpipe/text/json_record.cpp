#include "gpipe/text/json_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "gpipe/text/nearest_name.h"

namespace gpipe {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

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
  const char* expected = "a number of seconds, 0 or more";
  if (const auto* whole = std::get_if<std::uint64_t>(&given.value)) return static_cast<double>(*whole);
  if (std::holds_alternative<std::int64_t>(given.value) && std::get<std::int64_t>(given.value) == 0) return 0;
  const auto* number = std::get_if<double>(&given.value);
  if (number == nullptr || !std::isfinite(*number) || *number < 0) fail_value(given, expected);
  return *number == 0 ? 0 : *number;  // no negative zero
}

std::int64_t JsonReader::bytes(std::string_view name) const {
  constexpr double kLastWhole = 9007199254740992.0;  // above, a double does not say which whole number was meant
  const JsonField& given = field(name);
  if (const auto* whole = std::get_if<std::uint64_t>(&given.value)) {
    if (*whole <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return static_cast<std::int64_t>(*whole);
    }
  }
  if (std::holds_alternative<std::int64_t>(given.value) && std::get<std::int64_t>(given.value) == 0) return 0;
  const auto* number = std::get_if<double>(&given.value);
  if (number != nullptr && *number >= 0 && *number <= kLastWhole && *number == std::floor(*number)) {
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

}  // namespace gpipe
