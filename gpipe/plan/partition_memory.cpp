#include "gpipe/plan/partition_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "gpipe/error.h"

namespace gpipe {
namespace {

// Whether some partition into live.size() stages keeps within the furthest ends.
bool fits(FurthestEnds& furthest, const std::vector<std::vector<Live>>& live, int num_layers) {
  const int num_stages = static_cast<int>(live.size());
  const int nowhere = num_layers + 1;
  // next[b]: the first layer, b or behind, from which the stages behind the present one fit.
  std::vector<int> next(num_layers + 1, num_layers);
  for (int stage = num_stages - 1; stage >= 0; --stage) {
    const std::vector<int>& furthest_end = furthest.of(live[stage]);
    const int last_begin = num_layers - (num_stages - stage);
    int next_end = next[last_begin + 1];
    next[last_begin + 1] = nowhere;
    for (int begin = last_begin; begin >= stage; --begin) {
      const bool is_fitting = next_end <= furthest_end[begin];
      next_end = next[begin];
      next[begin] = is_fitting ? begin : next[begin + 1];
    }
    if (next[stage] == nowhere) return false;
  }
  return next[0] == 0;
}

// No partition into fewer stages fits, whatever the schedule; 0 if none can.
int least_possible_num_stages(const std::vector<int>& furthest_end, int num_layers) {
  int num_stages = 0;
  for (int begin = 0; begin < num_layers; begin = furthest_end[begin]) {
    if (furthest_end[begin] == begin) return 0;
    ++num_stages;
  }
  return num_stages;
}

bool holds_activations(const std::vector<Live>& live) {
  return std::any_of(live.begin(), live.end(), [](const Live& held) { return held.activations > 0; });
}

}  // namespace

std::vector<std::vector<Live>> live_of(const PartitionOptions& options, int num_stages) {
  if (num_stages != options.num_stages && options.live_for) {
    std::vector<std::vector<Live>> live = options.live_for(num_stages);
    if (!live.empty() && live.size() != static_cast<std::size_t>(num_stages)) {
      throw InvalidArgument(
          fmt::format("live_for({}) returns {} entries; expected one per stage, or none", num_stages, live.size()));
    }
    return live;
  }
  if (options.live.empty()) return std::vector<std::vector<Live>>(num_stages, {Live{1, 0}});
  std::vector<std::vector<Live>> live(num_stages);
  for (int stage = 0; stage < num_stages; ++stage) {
    live[stage] = options.live[std::max(0, options.num_stages - num_stages + stage)];
  }
  return live;
}

std::int64_t least_fullest_bytes(const IntervalBytes& bytes, const std::vector<std::vector<Live>>& live) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const int num_layers = bytes.num_layers();
  const int num_stages = static_cast<int>(live.size());
  std::vector<std::int64_t> rest(num_layers + 1, kNone);  // of the stages behind, from each layer on
  rest[num_layers] = 0;
  for (int stage = num_stages - 1; stage >= 0; --stage) {
    const int last_begin = stage == 0 ? 0 : num_layers - 1;
    const int last_end = num_layers - (num_stages - 1 - stage);
    for (int begin = stage; begin <= last_begin; ++begin) {
      std::int64_t best = kNone;
      for (int end = begin + 1; end <= last_end; ++end) {
        const std::int64_t own = bytes.bytes(live[stage], begin, end);
        best = std::min(best, std::max(own, rest[end]));
        if (own >= best) break;
      }
      rest[begin] = best;
    }
    rest[num_layers] = kNone;
  }
  return rest[0];
}

int smallest_num_stages(const IntervalBytes& bytes, const PartitionOptions& options) {
  const int num_layers = bytes.num_layers();
  const std::vector<std::vector<Live>> own = live_of(options, options.num_stages);
  const bool is_at_work = std::all_of(own.begin(), own.end(), holds_activations);
  FurthestEnds furthest(bytes, *options.memory_limit_bytes);
  const int first =
      least_possible_num_stages(bytes.furthest_possible_ends(is_at_work, *options.memory_limit_bytes), num_layers);
  if (first == 0) return 0;
  for (int num_stages = first; num_stages <= num_layers; ++num_stages) {
    const std::vector<std::vector<Live>> live = live_of(options, num_stages);
    if (!live.empty() && fits(furthest, live, num_layers)) return num_stages;
  }
  return 0;
}

}  // namespace gpipe
