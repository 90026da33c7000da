#include "gpipe/plan/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "gpipe/error.h"
#include "gpipe/plan/interval_bytes.h"
#include "gpipe/plan/interval_seconds.h"
#include "gpipe/plan/partition_memory.h"
#include "gpipe/plan/partition_search.h"
#include "gpipe/text/byte_text.h"

namespace gpipe {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw InvalidArgument(what);
}

void check_per_stage(const char* name, std::size_t size, int num_stages) {
  require(size == 0 || size == static_cast<std::size_t>(num_stages),
          fmt::format("{} has {} entries for {} stages; expected one per stage, or none", name, size, num_stages));
}

void check_counts(const Profile& profile, const PartitionOptions& options) {
  const std::size_t num_layers = profile.layers.size();
  require(
      num_layers <= kMaxPartitionLayers,
      fmt::format("the profile has {} layers; expected at most {}: join neighbours", num_layers, kMaxPartitionLayers));
  require(options.num_stages >= 1, fmt::format("num_stages is {}; expected at least 1", options.num_stages));
  require(static_cast<std::size_t>(options.num_stages) <= num_layers,
          fmt::format(
              "{} stages need {} layers or more, and the profile has {}; ask for at most {} {}, or split layers",
              options.num_stages, options.num_stages, num_layers, num_layers, num_layers == 1 ? "stage" : "stages"));
  require(options.num_micro_batches >= 1,
          fmt::format("num_micro_batches is {}; expected at least 1", options.num_micro_batches));
  require(options.optimizer_slots >= 0,
          fmt::format("optimizer_slots is {}; expected 0 or more", options.optimizer_slots));
  check_per_stage("worker_speed", options.worker_speed.size(), options.num_stages);
  check_per_stage("recompute_share", options.recompute_share.size(), options.num_stages);
  check_per_stage("live", options.live.size(), options.num_stages);
}

void check_values(const PartitionOptions& options) {
  const LinkCosts& link = options.link;
  require(std::isfinite(link.latency_seconds) && link.latency_seconds >= 0,
          fmt::format("link.latency_seconds is {}; expected a finite number, 0 or more", link.latency_seconds));
  require(link.bytes_per_second > 0,
          fmt::format("link.bytes_per_second is {}; expected a number above 0", link.bytes_per_second));
  require(options.memory_limit_bytes.value_or(0) >= 0,
          fmt::format("memory_limit_bytes is {}; expected 0 or more", options.memory_limit_bytes.value_or(0)));
  for (const double speed : options.worker_speed) {
    require(std::isfinite(speed) && speed > 0, fmt::format("worker_speed is {}; expected a number above 0", speed));
  }
  for (const double share : options.recompute_share) {
    require(share >= 0 && share <= 1, fmt::format("recompute_share is {}; expected 0 to 1", share));
  }
  for (const std::vector<Live>& stage : options.live) {
    for (const Live& held : stage) {
      require(held.activations >= 0 && held.inputs >= 0,
              fmt::format("live has {} activations and {} inputs; expected 0 or more", held.activations, held.inputs));
    }
  }
}

[[noreturn]] void fail_infeasible(const IntervalBytes& bytes, const PartitionOptions& options) {
  const std::int64_t limit = *options.memory_limit_bytes;
  const std::int64_t missing = least_fullest_bytes(bytes, live_of(options, options.num_stages)) - limit;
  const int smallest = smallest_num_stages(bytes, options);
  const std::string remedy =
      smallest > 0
          ? fmt::format("the smallest number of stages that fits is {}", smallest)
          : "no number of stages was found that fits: raise the limit, recompute, or use smaller micro-batches";
  throw InfeasibleError(
      fmt::format(
          "no partition of {} layers into {} stages fits the limit of {} a stage: the best lacks {} on its fullest "
          "stage; {}",
          bytes.num_layers(), options.num_stages, exact_byte_text(limit), exact_byte_text(missing), remedy),
      missing, smallest);
}

Partition describe(const std::vector<int>& layers_per_stage, const IntervalSeconds& seconds, const IntervalBytes& bytes,
                   const PartitionOptions& options) {
  const std::vector<std::vector<Live>> live = live_of(options, options.num_stages);
  Partition partition;
  double sum = 0;
  int begin = 0;
  for (int stage = 0; stage < options.num_stages; ++stage) {
    const int end = begin + layers_per_stage[stage];
    partition.stages.push_back({end - begin, seconds.seconds(stage, begin, end), bytes.bytes(live[stage], begin, end)});
    partition.slowest_seconds = std::max(partition.slowest_seconds, partition.stages.back().seconds);
    sum += partition.stages.back().seconds;
    begin = end;
  }
  partition.makespan_seconds = sum + (options.num_micro_batches - 1) * partition.slowest_seconds;
  return partition;
}

}  // namespace

void check_layers_per_stage(const std::vector<int>& layers_per_stage, std::size_t num_layers) {
  for (std::size_t stage = 0; stage < layers_per_stage.size(); ++stage) {
    if (layers_per_stage[stage] >= 1) continue;
    throw InvalidArgument(fmt::format("stage {} has {} layers; expected at least 1", stage, layers_per_stage[stage]));
  }
  const std::int64_t sum = std::accumulate(layers_per_stage.begin(), layers_per_stage.end(), std::int64_t{0});
  if (sum != static_cast<std::int64_t>(num_layers)) {
    throw InvalidArgument(fmt::format("the stages have {} layers together ({}), and the profile has {}", sum,
                                      fmt::join(layers_per_stage, " + "), num_layers));
  }
}

Partition partition_of(const Profile& profile, const std::vector<int>& layers_per_stage,
                       const PartitionOptions& options) {
  check_profile(profile);
  check_counts(profile, options);
  check_values(options);
  if (static_cast<int>(layers_per_stage.size()) != options.num_stages) {
    throw InvalidArgument(fmt::format("layers_per_stage has {} entries for {} stages; expected one per stage",
                                      layers_per_stage.size(), options.num_stages));
  }
  check_layers_per_stage(layers_per_stage, profile.layers.size());
  return describe(layers_per_stage, IntervalSeconds(profile, options), IntervalBytes(profile, options.optimizer_slots),
                  options);
}

Partition partition(const Profile& profile, const PartitionOptions& options) {
  check_profile(profile);
  check_counts(profile, options);
  check_values(options);
  const IntervalSeconds seconds(profile, options);
  const IntervalBytes bytes(profile, options.optimizer_slots);
  const std::vector<std::vector<Live>> live = live_of(options, options.num_stages);
  const std::vector<int> to_the_end(profile.layers.size(), static_cast<int>(profile.layers.size()));
  FurthestEnds furthest(bytes, options.memory_limit_bytes.value_or(0));
  PartitionChoices choices{seconds, {}};
  for (int stage = 0; stage < options.num_stages; ++stage) {
    choices.furthest_end.push_back(options.memory_limit_bytes ? &furthest.of(live[stage]) : &to_the_end);
  }
  const std::vector<int> layers_per_stage =
      best_layers_per_stage(choices, options.objective, options.num_micro_batches);
  if (layers_per_stage.empty()) fail_infeasible(bytes, options);
  return describe(layers_per_stage, seconds, bytes, options);
}

}  // namespace gpipe
