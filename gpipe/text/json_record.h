// Reads the one shape of JSON the library takes, {"field": scalar, "table": [{"field": scalar, ...}, ...], ...},
// remembers where everything stood, and says where and why it cannot read a field. What the names and the values mean
// is the caller's business. Fields of records that the caller names are objects of scalars instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/text/json.h"

namespace gpipe::detail {

// Offsets are of the last character of what they belong to, in bytes from the beginning of the text.
struct JsonRecord;

struct JsonField {
  std::string name;
  std::size_t name_offset = 0;
  JsonScalar value;
  std::size_t value_offset = 0;
  std::vector<JsonRecord> object = {};  // the one that is the value, of a field that is an object
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
// is deeper is refused where it begins. The fields of records named in `objects` must be objects of scalars.
JsonTables parse_json_tables(std::string_view text, const std::vector<std::string>& objects = {});

// Throws a ParseError whose message begins with the line and the column of the character at `offset`.
[[noreturn]] void json_fail_at(std::string_view text, std::size_t offset, const std::string& what);

// What a message may quote of hostile input: short, and without control characters.
std::string json_quoted(std::string_view text);

// The value as a message shows it.
std::string json_shown(const JsonScalar& value);

// The fields of one kind of record; those from `first_optional` on may be absent.
struct JsonForm {
  const char* what;
  std::vector<std::string> fields;
  std::size_t first_optional;
};

// A record whose fields are known, given once and complete: the constructor throws ParseError otherwise, and so does a
// field of another kind than asked for.
class JsonReader {
 public:
  // REQUIRES: all outlive this. `where` stands in front of every message.
  JsonReader(std::string_view text, const JsonRecord& record, const JsonForm& form, std::string where);

  std::size_t offset() const { return record_.offset; }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // REQUIRES of these: the field is there.
  const JsonField& field(std::string_view name) const { return *find(name); }
  std::string string(std::string_view name) const;
  double seconds(std::string_view name) const;
  double positive(std::string_view name) const;  // a finite number above 0
  std::int64_t bytes(std::string_view name) const;
  int count(std::string_view name, int least) const;  // from `least` to 2^31-1

  [[noreturn]] void fail(std::size_t offset, const std::string& what) const {
    json_fail_at(text_, offset, where_ + what);
  }
  // "field" is 3; expected ...
  [[noreturn]] void fail_value(const JsonField& field, const std::string& expected) const;

 private:
  const JsonField* find(std::string_view name) const;

  std::string_view text_;
  const JsonRecord& record_;
  std::string where_;
};

// Throws ParseError unless the tables are among `names`, each once, and no scalar beside them has such a name, nor any
// of them a name of `top`.
void check_json_tables(std::string_view text, const JsonTables& tables, const JsonForm& top,
                       const std::vector<std::string>& names);

// The table of that name; null if there is none.
const JsonTable* find_json_table(const JsonTables& tables, std::string_view name);

// " (did you mean ...?)", or nothing.
std::string json_hint(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace gpipe::detail
