#include "gpipe/transport/c10d/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>

#include "gpipe/error.h"

namespace gpipe {
namespace {

std::string take_text(const std::string& text, std::size_t& position) {
  std::size_t length = 0;
  const char* const end = text.data() + text.size();
  const auto [colon, error] = std::from_chars(text.data() + position, end, length);
  if (error != std::errc() || colon == end || *colon != ':' || length > static_cast<std::size_t>(end - colon - 1)) {
    throw InvalidArgument("this is not a fingerprint");
  }
  position = static_cast<std::size_t>(colon - text.data()) + 1 + length;
  return {colon + 1, length};
}

[[noreturn]] void throw_difference(const Fingerprint& first, const Fingerprint& other, std::size_t index, int rank) {
  const auto is_text = [&](const Fingerprint& fingerprint) {
    return index < fingerprint.size() && fingerprint[index].first == kAgreedText;
  };
  // A rank that has given fewer texts has something else at this place, which is not what differs.
  const bool is_about_texts = is_text(first) || is_text(other);
  const auto describe = [&](const Fingerprint& fingerprint, int of_rank) {
    if (is_about_texts) {
      return is_text(fingerprint) ? fmt::format("'{}' on rank {}", fingerprint[index].second, of_rank)
                                  : fmt::format("no such text on rank {}", of_rank);
    }
    if (index >= fingerprint.size()) return fmt::format("nothing more on rank {}", of_rank);
    const auto& [name, value] = fingerprint[index];
    return fmt::format("{} is '{}' on rank {}", name, value, of_rank);
  };
  const auto& entry = is_text(first) || (index < first.size() && !is_text(other)) ? first[index] : other[index];
  throw FingerprintError(
      fmt::format("the ranks were not started with the same model and settings; the first difference: {}, but {}",
                  describe(first, 0), describe(other, rank)),
      is_about_texts ? entry.second : entry.first, rank);
}

}  // namespace

std::string encode(const Fingerprint& fingerprint) {
  std::string text;
  for (const auto& [name, value] : fingerprint)
    text += fmt::format("{}:{}{}:{}", name.size(), name, value.size(), value);
  return text;
}

Fingerprint decode_fingerprint(const std::string& text) {
  Fingerprint fingerprint;
  for (std::size_t position = 0; position < text.size();) {
    std::string name = take_text(text, position);
    fingerprint.emplace_back(std::move(name), take_text(text, position));
  }
  return fingerprint;
}

std::int64_t decode_number(const std::string& value, std::int64_t least, std::int64_t most) {
  std::int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [behind, error] = std::from_chars(value.data(), end, number);
  if (error == std::errc() && behind == end && number >= least && number <= most) return number;
  throw InvalidArgument(fmt::format("'{}' is not a number from {} to {}", value, least, most));
}

void compare_fingerprints(const std::vector<Fingerprint>& of_rank) {
  const Fingerprint& first = of_rank.front();
  for (std::size_t rank = 1; rank < of_rank.size(); ++rank) {
    const Fingerprint& other = of_rank[rank];
    const auto [at_first, at_other] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
    if (at_first == first.end() && at_other == other.end()) continue;
    throw_difference(first, other, static_cast<std::size_t>(at_first - first.begin()), static_cast<int>(rank));
  }
}

}  // namespace gpipe
