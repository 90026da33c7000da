#include "gpipe/execute/cut/cut.h"

#include <fmt/format.h>

#include <string>
#include <tuple>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/values/checked_options.h"
#include "gpipe/plan/plan.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/transport/wire_table.h"

namespace gpipe::detail {
namespace {

constexpr const char* kNotACut = "these are not chosen stages";

constexpr std::tuple kSkipColumns(column("skips", &SkipProfile::name), column("from", &SkipProfile::from, 0),
                                  column("to", &SkipProfile::to, 0), column("bytes", &SkipProfile::bytes, 0));

}  // namespace

int Cut::stage_of(int layer) const {
  int stage = 0;
  for (const int count : layers_per_stage) {
    if (layer < count) return stage;
    layer -= count;
    ++stage;
  }
  return 0;
}

const std::vector<SkipProfile>& Cut::skips_in(bool training) const {
  static const std::vector<SkipProfile> none;
  const auto found = skips.find(training);
  return found != skips.end() ? found->second : none;
}

Schedule schedule_for(const PipelineOptions& options, const Cut& cut, int num_micro_batches) {
  return cut.order ? first_micro_batches(*cut.order, num_micro_batches) : schedule_for(options, num_micro_batches);
}

void check_order(const Schedule& order, const PipelineOptions& options) {
  ValidateOptions prove_only;
  prove_only.compute_capacities = false;
  validate(order, prove_only);
  const bool fits = order.num_workers() == options.num_stages() &&
                    order.num_micro_batches == options.num_micro_batches() && order.worker_of_stage.front() == 0 &&
                    order.worker_of_stage.back() == order.num_workers() - 1;
  if (fits) return;
  throw InvalidArgument(fmt::format(
      "{}: an order for {} workers and {} micro-batches; expected {} and {}, with the "
      "first stage on the first and the last on the last",
      kNotACut, order.num_workers(), order.num_micro_batches, options.num_stages(), options.num_micro_batches()));
}

// The skips by themselves: their names may have bytes that JSON cannot.
WireRecord to_record(const Cut& cut) {
  std::vector<std::string> recompute;
  for (const Recompute of_stage : cut.recompute_by_stage) recompute.emplace_back(name(of_stage));
  std::vector<std::string> rematerialization;
  for (const Rematerialization& of_stage : cut.rematerialization) rematerialization.push_back(to_text(of_stage));
  Profile profile = cut.profile;
  profile.skips.clear();
  WireRecord record;
  record.add("layers", cut.layers_per_stage);
  record.add("recompute", std::move(recompute));
  record.add("rematerialization", std::move(rematerialization));
  if (!profile.layers.empty()) record.add("profile", to_json(profile));
  if (cut.order) record.add("order", to_text(*cut.order));
  add_table(record, cut.profile.skips, kSkipColumns);
  return record;
}

Cut read_cut(const WireRecord& record) {
  WireReader reader(record, kNotACut);
  Cut cut;
  cut.layers_per_stage = reader.integers<int>("layers", 1);
  for (const std::string& text : reader.texts("recompute")) cut.recompute_by_stage.push_back(parse_recompute(text));
  for (const std::string& text : reader.texts("rematerialization")) {
    cut.rematerialization.push_back(parse_rematerialization(text));
  }
  if (reader.has("order")) {
    cut.order = parse_text(reader.text("order"));
    cut.order->name = kSearchedSchedule;
  }
  if (reader.has("profile")) cut.profile = parse_profile(reader.text("profile"));
  cut.profile.skips = read_table<SkipProfile>(reader, kSkipColumns);
  reader.finish();
  const auto num_layers = static_cast<int>(cut.profile.layers.size());
  for (const SkipProfile& skip : cut.profile.skips) {
    if (skip.from <= skip.to && skip.to < num_layers) continue;
    throw InvalidArgument(fmt::format("{}: skip '{}' goes from layer {} to layer {} of {}", kNotACut, skip.name,
                                      skip.from, skip.to, num_layers));
  }
  return cut;
}

}  // namespace gpipe::detail
