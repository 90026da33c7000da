// A comparison as JSON.
#include <nlohmann/json.hpp>

#include "gpipe/report/compare.h"
#include "gpipe/text/json.h"

namespace gpipe {
namespace {

using nlohmann::ordered_json;

template <typename Values>
ordered_json to_object(const Values& values) {
  return {{"predicted", values.predicted}, {"measured", values.measured}, {"ratio", values.ratio()}};
}

ordered_json to_object(const StageComparison& stage) {
  ordered_json object = {{"actions", ordered_json::array()}};
  for (const KindComparison& kind : stage.kinds) {
    object["actions"].push_back({{"kind", name(kind.kind)},
                                 {"num_actions", kind.num_actions},
                                 {"mean_seconds", to_object(kind.mean_seconds)},
                                 {"total_seconds", to_object(kind.total_seconds)}});
  }
  if (stage.peak_bytes) object["peak_bytes"] = to_object(*stage.peak_bytes);
  return object;
}

ordered_json to_object(const WorkerComparison& worker) {
  ordered_json object = {{"busy_seconds", to_object(worker.busy_seconds)},
                         {"idle_seconds", to_object(worker.idle_seconds)},
                         {"update_seconds", to_object(worker.update_seconds)}};
  if (worker.peak_bytes) object["peak_bytes"] = to_object(*worker.peak_bytes);
  return object;
}

}  // namespace

std::string to_json(const Comparison& comparison) {
  ordered_json json = {{"schedule", comparison.name},
                       {"num_workers", comparison.workers.size()},
                       {"num_stages", comparison.stages.size()},
                       {"num_micro_batches", comparison.num_micro_batches},
                       {"step_seconds", to_object(comparison.step_seconds)},
                       {"bubble_fraction", to_object(comparison.bubble_fraction)},
                       {"stages", ordered_json::array()},
                       {"workers", ordered_json::array()}};
  for (const StageComparison& stage : comparison.stages) json["stages"].push_back(to_object(stage));
  for (const WorkerComparison& worker : comparison.workers) json["workers"].push_back(to_object(worker));
  return indented_json(json);
}

}  // namespace gpipe
