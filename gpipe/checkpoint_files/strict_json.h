// JSON of a file that may be damaged or hostile: one meaning, a limited size and depth, and a CheckpointError for the
// rest.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "gpipe/error.h"
#include "gpipe/text/json.h"

namespace gpipe::detail {

class StrictJson {
 public:
  // Throws CheckpointError, "`path` is not a sound `what`: ...", unless the text is one JSON object without a key that
  // occurs twice.
  StrictJson(std::string_view text, const std::string& path, const char* what);

  const nlohmann::json& object() const { return object_; }

  // A field of an object in it. These throw CheckpointError if it is missing or of another type; `where` is what the
  // object is called, "" for the whole.
  const nlohmann::json& field(const nlohmann::json& object, const char* key, const std::string& where = "") const;
  std::string text(const nlohmann::json& object, const char* key, const std::string& where = "") const;
  std::int64_t number(const nlohmann::json& object, const char* key, const std::string& where = "") const;  // 0 or more
  const nlohmann::json& list(const nlohmann::json& object, const char* key, const std::string& where = "") const;
  const nlohmann::json& map(const nlohmann::json& object, const char* key, const std::string& where = "") const;

  [[noreturn]] void fail(const std::string& what) const;

 private:
  [[noreturn]] void fail_for(const JsonProblem& problem) const;

  const std::string path_;
  const char* const what_;
  nlohmann::json object_;
};

// The text of such a file. Throws CheckpointError if it cannot be read, or has more bytes than StrictJson takes.
std::string read_json_file(const std::string& path);

// Whether it can only be a file of the folder that it is looked for in.
bool is_plain_file_name(std::string_view name);

}  // namespace gpipe::detail
