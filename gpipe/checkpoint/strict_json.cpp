#include "gpipe/checkpoint/strict_json.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <vector>

#include "gpipe/checkpoint/opened_file.h"
#include "gpipe/checkpoint/safetensors_header.h"
#include "gpipe/utf8.h"

namespace gpipe {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxNameBytes = 255;

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::string read_json_file(const std::string& path) { return read_text(path, kMaxBytes); }

StrictJson::StrictJson(std::string_view text, const std::string& path, const char* what) : path_(path), what_(what) {
  if (text.size() > kMaxBytes) fail(fmt::format("it has {} bytes, more than {}", text.size(), kMaxBytes));
  const std::size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) fail(fmt::format("it is not UTF-8 at byte {}", invalid));
  // nlohmann keeps the last of equal keys: a file with two meanings.
  std::vector<std::set<std::string>> keys;
  const auto callback = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (depth > kMaxDepth) fail("it is nested too deeply");
    if (event == nlohmann::json::parse_event_t::object_start) keys.emplace_back();
    if (event == nlohmann::json::parse_event_t::object_end) keys.pop_back();
    if (event == nlohmann::json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      fail(fmt::format("{} occurs twice", quoted_name(value.get<std::string>())));
    }
    return true;
  };
  try {
    object_ = nlohmann::json::parse(text, callback);
  } catch (const nlohmann::json::parse_error& error) {
    fail(fmt::format("it is no JSON from byte {} on", error.byte));
  } catch (const nlohmann::json::exception&) {
    fail("a number in it is out of range");
  }
  if (!object_.is_object()) fail("it is no JSON object");
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

}  // namespace gpipe
