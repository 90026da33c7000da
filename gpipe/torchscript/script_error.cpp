#include "gpipe/torchscript/script_error.h"

#include <fmt/format.h>

#include <regex>
#include <sstream>
#include <vector>

namespace gpipe::detail {
namespace {

std::string trimmed(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string joined(const std::vector<std::string>& lines, std::size_t begin) {
  std::string text;
  for (std::size_t index = begin; index < lines.size(); ++index) {
    const std::string line = trimmed(lines[index]);
    if (line.empty() || line.compare(0, 21, "Exception raised from") == 0) {
      if (!line.empty()) break;
      continue;
    }
    text += (text.empty() ? "" : " ") + line;
  }
  return text;
}

}  // namespace

std::string script_error(const std::string& traceback) {
  static const std::regex kind("^[A-Za-z_.:]*(Error|Exception): ");
  static const std::regex file("^ *File \"([^\"]*)\", line ([0-9]+)");
  const std::vector<std::string> lines = lines_of(traceback);
  std::string source;
  std::string place;
  std::string last_place;
  std::size_t message = 0;
  for (std::size_t index = 0; index < lines.size(); ++index) {
    std::smatch match;
    if (std::regex_search(lines[index], match, file))
      last_place = fmt::format(" ({}, line {})", match.str(1), match.str(2));
    if (lines[index].find("<--- HERE") == std::string::npos || index == 0) continue;
    source = trimmed(lines[index - 1]);
    place = last_place;
    message = index + 1;
  }
  while (message < lines.size() && !std::regex_search(lines[message], kind)) ++message;
  const bool is_traceback = message < lines.size();
  std::string text = joined(lines, is_traceback ? message : 0);
  text = std::regex_replace(text, kind, "", std::regex_constants::format_first_only);
  return source.empty() ? text : fmt::format("{}{}: {}", source, place, text);
}

}  // namespace gpipe::detail
