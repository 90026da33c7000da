#include "gpipe/transport/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "gpipe/error.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {
namespace {

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

WireRecord to_record(const Fingerprint& fingerprint) {
  std::vector<std::string> names;
  std::vector<std::string> values;
  for (const auto& [name, value] : fingerprint) {
    names.push_back(name);
    values.push_back(value);
  }
  WireRecord record;
  record.add("names", std::move(names));
  record.add("values", std::move(values));
  return record;
}

Fingerprint read_fingerprint(const WireRecord& record) {
  WireReader reader(record, "this is not a fingerprint");
  const std::size_t count = reader.num_rows({"names", "values"});
  const std::vector<std::string>& names = reader.texts("names");
  const std::vector<std::string>& values = reader.texts("values");
  reader.finish();
  Fingerprint fingerprint;
  for (std::size_t index = 0; index < count; ++index) fingerprint.emplace_back(names[index], values[index]);
  return fingerprint;
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

}  // namespace gpipe::detail
