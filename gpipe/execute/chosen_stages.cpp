#include "gpipe/execute/chosen_stages.h"

#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {

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
  for (const auto& [name, value] : decode_fingerprint(text)) {
    if (name == "layers") chosen.layers_per_stage.push_back(std::stoi(value));
    if (name == "recompute") chosen.recompute_by_stage.push_back(parse_recompute(value));
    if (name == "rematerialization") chosen.rematerialization.push_back(parse_rematerialization(value));
    if (name == "profile") chosen.profile = parse_profile(value);
    if (name == "skip") skips.push_back({value, 0, 0, 0});
    if (name == "from") skips.back().from = std::stoi(value);
    if (name == "to") skips.back().to = std::stoi(value);
    if (name == "bytes") skips.back().bytes = std::stoll(value);
  }
  chosen.profile.skips = std::move(skips);
  return chosen;
}

}  // namespace gpipe
