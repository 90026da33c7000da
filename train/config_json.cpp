#include "train/config_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "gpipe/error.h"
#include "gpipe/text/json.h"

namespace gpipe::train {
namespace {

using nlohmann::ordered_json;

std::int64_t line_of(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  return 1 + std::count(before.begin(), before.end(), '\n');
}

[[noreturn]] void fail(const std::string& what, std::int64_t line) {
  throw ParseError(line > 0 ? fmt::format("line {}: {}", line, what) : what, line, 0);
}

std::string word(const std::string& name, const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return value.dump();
  fail(fmt::format("\"{}\" is {}; expected a number, a string, true, false or a list of those", name,
                   value.is_null() ? "null" : fmt::format("an {}", value.type_name())),
       0);
}

ordered_json parse(std::string_view text) {
  try {
    return ordered_json_document(text);
  } catch (const JsonProblem& problem) {
    if (problem.kind == JsonProblem::kNameTwice) fail(fmt::format("\"{}\" is given twice", problem.name), 0);
    fail(fmt::format("not JSON: {}", problem.what()), line_of(text, problem.byte == 0 ? 0 : problem.byte - 1));
  }
}

}  // namespace

std::vector<CLI::ConfigItem> parse_config_json(std::string_view text) {
  const ordered_json document = parse(text);
  if (!document.is_object()) {
    fail(fmt::format("this is {}; a configuration in JSON is one object, such as {{\"stages\": 4}}",
                     document.is_null() ? "null" : fmt::format("a JSON {}", document.type_name())),
         1);
  }
  std::vector<CLI::ConfigItem> items;
  for (const auto& [name, value] : document.items()) {
    CLI::ConfigItem item;
    item.name = name;
    if (value.is_array()) {
      if (value.empty()) fail(fmt::format("\"{}\" is an empty list; leave it out instead", name), 0);
      for (const ordered_json& element : value) item.inputs.push_back(word(name, element));
    } else {
      item.inputs.push_back(word(name, value));
    }
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace gpipe::train
