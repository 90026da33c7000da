// Reads the one shape of JSON the library takes, {"field": scalar, "table": [{"field": scalar, ...}, ...], ...}, and
// remembers where everything stood. What the names and the values mean is the caller's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/text/json_events.h"

namespace gpipe {

// Offsets are of the last character of what they belong to, in bytes from the beginning of the text.
struct JsonField {
  std::string name;
  std::size_t name_offset = 0;
  JsonScalar value;
  std::size_t value_offset = 0;
};

struct JsonRecord {
  std::vector<JsonField> fields;  // in the order of the text; names may repeat
  std::size_t offset = 0;
};

struct JsonTable {
  std::string name;
  std::size_t name_offset = 0;
  std::vector<JsonRecord> records;
};

struct JsonTables {
  JsonRecord top;                 // the scalars beside the tables
  std::vector<JsonTable> tables;  // in the order of the text; names may repeat
};

// Throws ParseError for text of any other shape, whatever bytes it is made of. Linear in time and memory; nesting that
// is deeper is refused where it begins.
JsonTables parse_json_tables(std::string_view text);

// Throws a ParseError whose message begins with the line and the column of the character at `offset`.
[[noreturn]] void json_fail_at(std::string_view text, std::size_t offset, const std::string& what);

// What a message may quote of hostile input: short, and without control characters.
std::string json_quoted(std::string_view text);

// The value as a message shows it.
std::string json_shown(const JsonScalar& value);

}  // namespace gpipe
