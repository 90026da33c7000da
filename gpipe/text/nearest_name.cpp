#include "gpipe/text/nearest_name.h"

#include <algorithm>
#include <cstddef>

namespace gpipe::detail {
namespace {

// ASCII only: names are ours, and the locale must not change an answer.
std::string lower(std::string_view name) {
  std::string folded(name);
  for (char& letter : folded) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return folded;
}

// Optimal string alignment: edit distance in which swapping two neighbours costs one and no letter is edited twice.
// Three rows of the usual table are enough, since a swap looks back two rows.
std::size_t edit_distance(const std::string& from, const std::string& to) {
  std::vector<std::size_t> before_last(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  for (std::size_t column = 0; column <= to.size(); ++column) row[column] = column;
  for (std::size_t line = 1; line <= from.size(); ++line) {
    before_last.swap(last);
    last.swap(row);
    row[0] = line;
    for (std::size_t column = 1; column <= to.size(); ++column) {
      const bool same = from[line - 1] == to[column - 1];
      row[column] = std::min({last[column] + 1, row[column - 1] + 1, last[column - 1] + (same ? 0 : 1)});
      if (line > 1 && column > 1 && from[line - 1] == to[column - 2] && from[line - 2] == to[column - 1]) {
        row[column] = std::min(row[column], before_last[column - 2] + 1);
      }
    }
  }
  return row[to.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest;
  std::size_t least = 0;
  for (const std::string& candidate : candidates) {
    const auto [shorter, longer] = std::minmax({name.size(), candidate.size()});
    // The lengths alone rule out most candidates, so a hostile name of any length costs nothing.
    if (3 * (longer - shorter) > longer) continue;
    const std::size_t distance = edit_distance(lower(name), lower(candidate));
    if (3 * distance > longer) continue;
    if (nearest.empty() || distance < least) {
      nearest = candidate;
      least = distance;
    }
  }
  return nearest;
}

}  // namespace gpipe::detail
