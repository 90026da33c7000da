#include "cli/option.h"

#include <algorithm>

#include "gpipe/text/nearest_name.h"

namespace gpipe::cli {

std::size_t parse_choice(std::string_view word, const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  const std::string nearest = nearest_name(word, words);
  throw InvalidArgument(fmt::format("'{}' is not one of {}{}", word, fmt::join(words, ", "),
                                    nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

std::string parse_path(std::string_view word) {
  if (word.empty()) throw InvalidArgument("'' is not the name of a file");
  return std::string(word);
}

}  // namespace gpipe::cli
