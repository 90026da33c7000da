#include "gpipe/execute/cut/chosen_stages.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {
namespace {

constexpr const char* kNotChosenStages = "these are not chosen stages";

void add_skips(detail::WireRecord& record, const std::vector<SkipProfile>& skips) {
  std::vector<std::string> names;
  std::vector<int> from;
  std::vector<int> to;
  std::vector<std::int64_t> bytes;
  for (const SkipProfile& skip : skips) {
    names.push_back(skip.name);
    from.push_back(skip.from);
    to.push_back(skip.to);
    bytes.push_back(skip.bytes);
  }
  record.add("skips", std::move(names));
  record.add("from", from);
  record.add("to", to);
  record.add("bytes", bytes);
}

// Of a chain of so many layers.
std::vector<SkipProfile> read_skips(detail::WireReader& reader, std::size_t num_layers) {
  const std::size_t count = reader.num_rows({"skips", "from", "to", "bytes"});
  const std::vector<std::string>& names = reader.texts("skips");
  const std::vector<int> from = reader.integers<int>("from", 0);
  const std::vector<int> to = reader.integers<int>("to", 0);
  const std::vector<std::int64_t> bytes = reader.integers<std::int64_t>("bytes", 0);
  std::vector<SkipProfile> skips(count);
  for (std::size_t index = 0; index < count; ++index) {
    SkipProfile& skip = skips[index];
    skip.name = names[index];
    skip.from = from[index];
    skip.to = to[index];
    skip.bytes = bytes[index];
    if (skip.from <= skip.to && static_cast<std::size_t>(skip.to) < num_layers) continue;
    throw InvalidArgument(fmt::format("{}: skip '{}' goes from layer {} to layer {} of {}", kNotChosenStages, skip.name,
                                      skip.from, skip.to, num_layers));
  }
  return skips;
}

}  // namespace

// The skips by themselves: their names may have bytes that JSON cannot.
detail::WireRecord to_record(const ChosenStages& chosen) {
  std::vector<std::string> recompute;
  for (const Recompute of_stage : chosen.recompute_by_stage) recompute.emplace_back(name(of_stage));
  std::vector<std::string> rematerialization;
  for (const Rematerialization& of_stage : chosen.rematerialization) rematerialization.push_back(to_text(of_stage));
  Profile profile = chosen.profile;
  profile.skips.clear();
  detail::WireRecord record;
  record.add("layers", chosen.layers_per_stage);
  record.add("recompute", std::move(recompute));
  record.add("rematerialization", std::move(rematerialization));
  if (!profile.layers.empty()) record.add("profile", to_json(profile));
  add_skips(record, chosen.profile.skips);
  return record;
}

ChosenStages read_chosen_stages(const detail::WireRecord& record) {
  detail::WireReader reader(record, kNotChosenStages);
  ChosenStages chosen;
  chosen.layers_per_stage = reader.integers<int>("layers", 1);
  for (const std::string& text : reader.texts("recompute")) chosen.recompute_by_stage.push_back(parse_recompute(text));
  for (const std::string& text : reader.texts("rematerialization")) {
    chosen.rematerialization.push_back(parse_rematerialization(text));
  }
  if (reader.has("profile")) chosen.profile = parse_profile(reader.text("profile"));
  chosen.profile.skips = read_skips(reader, chosen.profile.layers.size());
  reader.finish();
  return chosen;
}

}  // namespace gpipe
