#include "gpipe/launch/slurm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "gpipe/error.h"
#include "gpipe/text/number.h"

namespace gpipe::detail {
namespace {

constexpr std::size_t kMostHosts = 65536;

[[noreturn]] void refuse(const std::string& problem) { throw ParseError(problem, 0, 0); }

// Throws unless all of it is digits, nine at most.
int parse_digits(std::string_view digits) {
  constexpr std::size_t kMost = 9;
  const std::optional<int> value = to_number<int>(digits);
  if (!value || digits.size() > kMost || digits[0] == '-') {
    refuse(fmt::format("'{}' is not a number of up to {} digits", digits, kMost));
  }
  return *value;
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  bool in_brackets = false;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || (text[at] == ',' && !in_brackets)) {
      parts.push_back(text.substr(begin, at - begin));
      begin = at + 1;
    } else if (text[at] == '[' || text[at] == ']') {
      if (in_brackets == (text[at] == '[')) refuse("its brackets do not match");
      in_brackets = text[at] == '[';
    }
  }
  if (in_brackets) refuse("its brackets do not match");
  return parts;
}

// "03-05" is 03, 04, 05: the first number says how many digits all of them have.
void append_range(std::string_view range, std::vector<std::string>& numbers) {
  const std::size_t dash = std::min(range.find('-'), range.size());
  const std::string_view first = range.substr(0, dash);
  const int low = parse_digits(first);
  const int high = dash == range.size() ? low : parse_digits(range.substr(dash + 1));
  if (high < low) refuse(fmt::format("'{}' goes down", range));
  if (static_cast<std::size_t>(high - low) >= kMostHosts - numbers.size()) {
    refuse(fmt::format("it has more than {} hosts", kMostHosts));
  }
  for (int number = low; number <= high; ++number) numbers.push_back(fmt::format("{:0{}}", number, first.size()));
}

// One element of the list, with any number of brackets: "rack[1-2]n[01-02]".
std::vector<std::string> expand_element(std::string_view element) {
  if (element.empty()) refuse("it has an empty element");
  std::vector<std::string> names = {""};
  while (!element.empty()) {
    const std::size_t open = std::min(element.find('['), element.size());
    const std::size_t close = std::min(element.find(']', open), element.size());
    std::vector<std::string> middles;
    if (open < element.size()) {
      for (const std::string_view range : split_at_commas(element.substr(open + 1, close - open - 1))) {
        append_range(range, middles);
      }
    } else {
      middles.emplace_back("");
    }
    if (names.size() * middles.size() > kMostHosts) refuse(fmt::format("it has more than {} hosts", kMostHosts));
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& middle : middles)
        longer.push_back(fmt::format("{}{}{}", name, element.substr(0, open), middle));
    }
    names = std::move(longer);
    element.remove_prefix(std::min(close + 1, element.size()));
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_slurm_hosts(std::string_view list) {
  std::vector<std::string> hosts;
  for (const std::string_view element : split_at_commas(list)) {
    std::vector<std::string> names = expand_element(element);
    if (hosts.size() + names.size() > kMostHosts) refuse(fmt::format("it has more than {} hosts", kMostHosts));
    hosts.insert(hosts.end(), names.begin(), names.end());
  }
  return hosts;
}

int slurm_tasks_of_node(std::string_view list, int node) {
  std::int64_t nodes = 0;
  for (const std::string_view part : split_at_commas(list)) {
    const std::size_t open = std::min(part.find("(x"), part.size());
    const int tasks = parse_digits(part.substr(0, open));
    if (open == part.size()) {
      ++nodes;
    } else {
      if (part.back() != ')') refuse(fmt::format("'{}' is not a count such as 4(x2)", part));
      nodes += parse_digits(part.substr(open + 2, part.size() - open - 3));
    }
    if (node < nodes) return tasks;
  }
  refuse(fmt::format("it has {} nodes, so no node {}", nodes, node));
}

}  // namespace gpipe::detail
