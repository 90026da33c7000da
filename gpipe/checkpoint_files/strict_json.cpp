#include "gpipe/checkpoint_files/strict_json.h"

#include <fmt/format.h>

#include <limits>

#include "gpipe/os/input_file.h"
#include "gpipe/text/json.h"
#include "gpipe/text/printable.h"

namespace gpipe::detail {
namespace {

constexpr std::size_t kMaxJsonBytes = std::size_t{64} << 20;
constexpr int kMaxJsonDepth = 16;
constexpr std::size_t kMaxNameBytes = 255;

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::string read_json_file(const std::string& path) { return read_text(path, kMaxJsonBytes); }

StrictJson::StrictJson(std::string_view text, const std::string& path, const char* what) : path_(path), what_(what) {
  try {
    object_ = json_document(text, {kMaxJsonBytes, kMaxJsonDepth});
  } catch (const JsonProblem& problem) {
    fail_for(problem);
  }
  if (!object_.is_object()) fail("it is no JSON object");
}

void StrictJson::fail_for(const JsonProblem& problem) const {
  switch (problem.kind) {
    case JsonProblem::kTooLong:
      fail(fmt::format("it has {}", problem.what()));
    case JsonProblem::kNotUtf8:
      fail(fmt::format("it is not UTF-8 at byte {}", problem.invalid_utf8));
    case JsonProblem::kTooDeep:
      fail("it is nested too deeply");
    case JsonProblem::kNameTwice:
      fail(fmt::format("{} occurs twice", quoted_name(problem.name)));
    case JsonProblem::kNotJson:
      fail(fmt::format("it is no JSON from byte {} on", problem.byte));
    case JsonProblem::kNumberTooLarge:
      fail("a number in it is out of range");
  }
  fail("it is no JSON");
}

void StrictJson::fail(const std::string& what) const {
  throw CheckpointError(path_, fmt::format(" is not a sound {}: {}; write or fetch it again", what_, what));
}

const nlohmann::json& StrictJson::field(const nlohmann::json& object, const char* key, const std::string& where) const {
  const auto found = object.find(key);
  if (found == object.end()) fail(fmt::format("{}it has no \"{}\"", where, key));
  return *found;
}

std::string StrictJson::text(const nlohmann::json& object, const char* key, const std::string& where) const {
  const nlohmann::json& value = field(object, key, where);
  if (!value.is_string()) fail(fmt::format("{}\"{}\" is no text", where, key));
  return value.get<std::string>();
}

std::int64_t StrictJson::number(const nlohmann::json& object, const char* key, const std::string& where) const {
  const nlohmann::json& value = field(object, key, where);
  if (!value.is_number_unsigned() ||
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    fail(fmt::format("{}\"{}\" is no whole number from 0 on", where, key));
  }
  return value.get<std::int64_t>();
}

const nlohmann::json& StrictJson::list(const nlohmann::json& object, const char* key, const std::string& where) const {
  const nlohmann::json& value = field(object, key, where);
  if (!value.is_array()) fail(fmt::format("{}\"{}\" is no list", where, key));
  return value;
}

const nlohmann::json& StrictJson::map(const nlohmann::json& object, const char* key, const std::string& where) const {
  const nlohmann::json& value = field(object, key, where);
  if (!value.is_object()) fail(fmt::format("{}\"{}\" is no object", where, key));
  return value;
}

}  // namespace gpipe::detail
