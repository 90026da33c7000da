#include "cli/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/os/input_file.h"
#include "gpipe/text/json.h"
#include "gpipe/text/nearest_name.h"

namespace gpipe::cli {
namespace {

using detail::JsonProblem;
using detail::ordered_json_document;
using detail::read_small_stream;
using detail::SmallFile;

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

// The fields of the one object that `text` holds, in their order. Throws ParseError with the line for text that is not
// such JSON, a field given twice, and a value that is no number, string, boolean or list of those.
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

// The first line whose first name, bare or in quotes, is `name`; zero if there is none.
std::int64_t line_of_name(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    for (std::size_t at = line.find(name); at != std::string::npos; at = line.find(name, at + 1)) {
      const std::size_t behind = line.find_first_not_of("\" \t", at + name.size());
      const bool is_whole = at == 0 || line.find_first_of("{,\" \t", at - 1) == at - 1;
      if (is_whole && behind != std::string::npos && (line[behind] == ':' || line[behind] == '=')) return number;
    }
  }
  return 0;
}

// CLI11 would join the values of a name that is given twice.
void refuse_twice(const std::string& toml) {
  std::set<std::string> names;
  std::istringstream lines(toml);
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos || line.find('#') < equals) continue;
    const std::string name = CLI::detail::trim_copy(line.substr(0, equals));
    if (!names.insert(name).second) throw ParseError(fmt::format("'{}' is given twice", name), number, 0);
  }
}

// CLI11 would pass over a line of one or two letters, which can be no option, without a word.
void refuse_short_lines(const std::string& toml) {
  std::istringstream lines(toml);
  std::int64_t number = 0;
  bool is_in_list = false;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    CLI::detail::trim(line);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    constexpr std::size_t kShortest = 3;
    if (line.size() < kShortest && !is_in_list) {
      throw ParseError(fmt::format("'{}' is no option; an option is a line such as 'stages = 4'", line), number, 0);
    }
    const std::size_t value = line.find_first_not_of(" \t", line.find('=') + 1);
    const bool begins_list = line.find('=') != std::string::npos && value != std::string::npos && line[value] == '[';
    is_in_list = (is_in_list || begins_list) && line.back() != ']';
  }
}

class ConfigFile : public CLI::ConfigTOML {
 public:
  explicit ConfigFile(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

 private:
  // The app and, below it, the commands that were named.
  std::vector<const CLI::App*> named_commands() const;
  bool has_option(const CLI::App& command, const std::string& name) const;
  std::vector<CLI::ConfigItem> parse_toml(const std::string& text) const;
  void address(CLI::ConfigItem& item) const;
  std::string read_all(std::istream& input) const;
  std::string file_name() const;

  const CLI::App& app_;
};

std::vector<const CLI::App*> ConfigFile::named_commands() const {
  std::vector<const CLI::App*> commands = {&app_};
  while (!commands.back()->get_subcommands().empty()) commands.push_back(commands.back()->get_subcommands().front());
  return commands;
}

// --help and --config itself are no options of a file.
bool ConfigFile::has_option(const CLI::App& command, const std::string& name) const {
  const CLI::Option* option = command.get_option_no_throw("--" + name);
  return option != nullptr && option != command.get_help_ptr() && option != command.get_config_ptr() &&
         option->get_configurable();
}

std::string ConfigFile::file_name() const {
  const CLI::Option* option = app_.get_config_ptr();
  return option == nullptr || option->results().empty() ? "" : fmt::format("'{}': ", option->results().back());
}

std::vector<CLI::ConfigItem> ConfigFile::parse_toml(const std::string& text) const {
  refuse_twice(text);
  refuse_short_lines(text);
  std::istringstream input(text);
  std::vector<CLI::ConfigItem> fields = CLI::ConfigTOML::from_config(input);
  for (const CLI::ConfigItem& item : fields) {
    const std::string full_name = item.fullname();
    if (!item.parents.empty()) {
      throw ParseError(fmt::format("'{}' is in a section; a configuration has none, only options", full_name), 0, 0);
    }
    for (const std::string& word : item.inputs) {
      if (!word.empty() && (word.front() == '"' || word.front() == '\'')) {
        throw ParseError(fmt::format("the value of '{}' begins with a quote that does not end; a '#' begins a comment, "
                                     "even within quotes: use JSON for such a value",
                                     item.name),
                         line_of_name(text, item.name), 0);
      }
    }
  }
  return fields;
}

// Which command an option belongs to; the last that has it.
void ConfigFile::address(CLI::ConfigItem& item) const {
  const std::vector<const CLI::App*> commands = named_commands();
  std::vector<std::string> path;
  bool is_known = false;
  for (const CLI::App* command : commands) {
    if (command != &app_) path.push_back(command->get_name());
    if (!has_option(*command, item.name)) continue;
    item.parents = path;
    is_known = true;
    // An option of one word takes a list as it does on the command line: "5,4".
    const CLI::Option* option = command->get_option_no_throw("--" + item.name);
    if (option != nullptr && option->get_items_expected_max() == 1 && item.inputs.size() > 1) {
      item.inputs = {fmt::format("{}", fmt::join(item.inputs, ","))};
    }
  }
  if (is_known) return;
  std::vector<std::string> known;
  for (const CLI::App* command : commands) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        if (has_option(*command, name)) known.push_back(name);
      }
    }
  }
  const std::string nearest = detail::nearest_name(item.name, known);
  throw ParseError(
      fmt::format("'{}' is no option{}", item.name,
                  nearest.empty() ? "; the names are those of the command line, without the dashes in front"
                                  : fmt::format("; did you mean '{}'?", nearest)),
      0, 0);
}

std::string ConfigFile::read_all(std::istream& input) const {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  const auto read = [&](char* bytes, std::size_t size) {
    return static_cast<ssize_t>(input.read(bytes, static_cast<std::streamsize>(size)).gcount());
  };
  SmallFile file = read_small_stream(read, kMostBytes);
  if (!file.is_read()) {
    throw ParseError(fmt::format("{}it {}; is it the right file?", file_name(), file.problem), 0, 0);
  }
  return std::move(file.content);
}

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  const std::string text = read_all(input);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  // What is a document of JSON, but no object, is not TOML.
  const bool is_json = first != std::string::npos && (text[first] == '{' || nlohmann::json::accept(text));
  std::string name;
  try {
    std::vector<CLI::ConfigItem> fields = is_json ? parse_config_json(text) : parse_toml(text);
    for (CLI::ConfigItem& item : fields) {
      name = item.name;
      address(item);
    }
    return fields;
  } catch (const ParseError& error) {
    const std::int64_t line = error.line() == 0 && !name.empty() ? line_of_name(text, name) : error.line();
    const std::string what = error.what();
    const bool says_line = line == 0 || what.rfind("line ", 0) == 0;
    throw ParseError(file_name() + (says_line ? "" : fmt::format("line {}: ", line)) + what, line, error.column());
  }
}

}  // namespace

CLI::Option* add_config_option(CLI::App& app) {
  app.config_formatter(std::make_shared<ConfigFile>(app));
  return app.set_config("--config", "", "Options from a JSON or TOML file; those given here win")->type_name("FILE");
}

}  // namespace gpipe::cli
