#include "gpipe/execute/cut/chosen_stages.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

// The value of the entry after `index`, which has to have that name. Moves on to it.
std::int64_t next_number(const Fingerprint& entries, std::size_t& index, const char* name, std::int64_t most) {
  if (++index < entries.size() && entries[index].first == name) return decode_number(entries[index].second, 0, most);
  throw InvalidArgument(fmt::format("these are not chosen stages: '{}' of a skip is missing", name));
}

}  // namespace

// The skips by themselves: their names may have bytes that JSON cannot.
std::string encode(const ChosenStages& chosen) {
  Fingerprint entries;
  for (const int count : chosen.layers_per_stage) entries.emplace_back("layers", std::to_string(count));
  for (const Recompute recompute : chosen.recompute_by_stage) entries.emplace_back("recompute", name(recompute));
  for (const Rematerialization& stage : chosen.rematerialization) {
    entries.emplace_back("rematerialization", to_text(stage));
  }
  Profile profile = chosen.profile;
  profile.skips.clear();
  if (!profile.layers.empty()) entries.emplace_back("profile", to_json(profile));
  for (const SkipProfile& skip : chosen.profile.skips) {
    entries.emplace_back("skip", skip.name);
    entries.emplace_back("from", std::to_string(skip.from));
    entries.emplace_back("to", std::to_string(skip.to));
    entries.emplace_back("bytes", std::to_string(skip.bytes));
  }
  return encode(entries);
}

ChosenStages decode_chosen_stages(const std::string& text) {
  ChosenStages chosen;
  std::vector<SkipProfile> skips;
  const Fingerprint entries = decode_fingerprint(text);
  for (std::size_t index = 0; index < entries.size(); ++index) {
    const auto& [name, value] = entries[index];
    if (name == "layers") {
      chosen.layers_per_stage.push_back(static_cast<int>(decode_number(value, 1, kMaxInt)));
    } else if (name == "recompute") {
      chosen.recompute_by_stage.push_back(parse_recompute(value));
    } else if (name == "rematerialization") {
      chosen.rematerialization.push_back(parse_rematerialization(value));
    } else if (name == "profile") {
      chosen.profile = parse_profile(value);
    } else if (name == "skip") {
      SkipProfile skip;
      skip.name = value;
      skip.from = static_cast<int>(next_number(entries, index, "from", kMaxInt));
      skip.to = static_cast<int>(next_number(entries, index, "to", kMaxInt));
      skip.bytes = next_number(entries, index, "bytes", std::numeric_limits<std::int64_t>::max());
      skips.push_back(std::move(skip));
    } else {
      throw InvalidArgument(fmt::format("these are not chosen stages: '{}' does not belong there", name));
    }
  }
  for (const SkipProfile& skip : skips) {
    if (skip.from <= skip.to && static_cast<std::size_t>(skip.to) < chosen.profile.layers.size()) continue;
    throw InvalidArgument(fmt::format("these are not chosen stages: skip '{}' goes from layer {} to layer {} of {}",
                                      skip.name, skip.from, skip.to, chosen.profile.layers.size()));
  }
  chosen.profile.skips = std::move(skips);
  return chosen;
}

}  // namespace gpipe
