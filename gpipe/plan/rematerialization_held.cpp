#include "gpipe/plan/rematerialization_held.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "gpipe/text/byte_text.h"

namespace gpipe {
namespace {

constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxPeaks = 64;  // that are tried, below and above what dropping everything takes
constexpr std::size_t kMaxWays = 256;

// A way through the blocks in front of one, in the first forward.
struct Way {
  std::int64_t kept_bytes = 0;   // left behind
  double recompute_seconds = 0;  // that will follow in the backward
  int from = 0;                  // the block in front of which the last step began
  int way = 0;                   // by which it came there
  bool is_run = false;           // else the step is one block that is kept
};
using Ways = std::vector<Way>;  // bytes ascending, seconds descending

// What the micro-batch that works may take and leave behind, and the recompute it has to stay below.
struct Share {
  std::int64_t peak_bytes = 0;
  std::int64_t kept_bytes = std::numeric_limits<std::int64_t>::max();
  double recompute_seconds = std::numeric_limits<double>::infinity();
};

// The best ways, at most kMaxWays of them and always the one that keeps least; true if none was left out but worse
// ones.
bool choose_best(Ways& ways) {
  std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
    return a.kept_bytes != b.kept_bytes ? a.kept_bytes < b.kept_bytes : a.recompute_seconds < b.recompute_seconds;
  });
  std::size_t num_best = 0;
  for (const Way& way : ways) {
    if (num_best == 0 || way.recompute_seconds < ways[num_best - 1].recompute_seconds) ways[num_best++] = way;
  }
  ways.resize(num_best);
  if (num_best <= kMaxWays) return true;
  for (std::size_t index = 0; index < kMaxWays; ++index) ways[index] = ways[index * (num_best - 1) / (kMaxWays - 1)];
  ways.resize(kMaxWays);
  return false;
}

class WaySearch {
 public:
  WaySearch(const RematerializationTrades& trades, const Share& share) : trades_(trades), share_(share) {
    const int num_blocks = static_cast<int>(trades.blocks().size());
    ways_.resize(num_blocks + 1);
    ways_[0].push_back({});
    for (int block = 0; block <= num_blocks; ++block) {
      is_exact_ = choose_best(ways_[block]) && is_exact_;
      if (block < num_blocks) step_from(block);
    }
  }

  const Ways& to_the_end() const { return ways_.back(); }
  bool is_exact() const { return is_exact_; }

  Rematerialization read_off(int way) const {
    Rematerialization runs;
    for (int block = static_cast<int>(ways_.size()) - 1; block > 0;) {
      const Way& last = ways_[block][way];
      if (last.is_run) {
        const std::int64_t left_bytes = share_.peak_bytes - last.kept_bytes;
        runs.push_back({last.from, block, trades_.nested_within(last.from, block, left_bytes)});
      }
      block = last.from;
      way = last.way;
    }
    std::reverse(runs.begin(), runs.end());
    return runs;
  }

 private:
  void step_from(int block) {
    for (std::size_t index = 0; index < ways_[block].size(); ++index) {
      const Way here = ways_[block][index];
      const RematerializationBlock& first = trades_.blocks()[block];
      if (here.kept_bytes + first.kept_working_bytes <= share_.peak_bytes) {
        add(block + 1,
            {here.kept_bytes + first.activation_bytes, here.recompute_seconds, block, static_cast<int>(index), false});
      }
      drop_from(block, {here.kept_bytes + trades_.input_bytes(block), here.recompute_seconds, block,
                        static_cast<int>(index), true});
    }
  }

  // All runs that begin with the block.
  void drop_from(int block, Way way) {
    const std::int64_t left_bytes = share_.peak_bytes - way.kept_bytes;
    for (int end = block + 1; end < static_cast<int>(ways_.size()); ++end) {
      const RematerializationBlock& last = trades_.blocks()[end - 1];
      if (last.dropped_working_bytes > left_bytes) return;  // nor does a longer run fit
      way.recompute_seconds += last.forward_seconds;
      const std::vector<RematerializationTrade>& again = trades_.again(block, end);
      if (again.front().bytes > left_bytes) continue;
      Way next = way;
      next.recompute_seconds += best_within(again, left_bytes).recompute_seconds;
      add(end, next);
    }
  }

  void add(int block, const Way& way) {
    if (way.kept_bytes > share_.kept_bytes || way.recompute_seconds >= share_.recompute_seconds) return;
    ways_[block].push_back(way);
  }

  const RematerializationTrades& trades_;
  Share share_;
  std::vector<Ways> ways_;  // [block]: to the front of it
  bool is_exact_ = true;
};

// Running the chain again takes no less than its first forward.
std::int64_t drop_everything_bytes(const RematerializationTrades& trades) {
  return trades.again(0, static_cast<int>(trades.blocks().size())).front().bytes;
}

// All sizes, and so all peaks, are multiples of it.
std::int64_t common_unit(const RematerializationTrades& trades) {
  std::int64_t unit = 0;
  for (const RematerializationBlock& block : trades.blocks()) {
    for (const std::int64_t bytes : {block.activation_bytes, block.output_bytes, block.output_grad_bytes,
                                     block.kept_working_bytes, block.dropped_working_bytes}) {
      unit = std::gcd(unit, bytes);
    }
  }
  return std::max<std::int64_t>(unit, 1);
}

// No peak is above it: everything is kept, and every input of a run.
std::int64_t highest_peak_bytes(const RematerializationTrades& trades) {
  WideBytes kept = 0;
  std::int64_t working = 0;
  std::int64_t waiting = 0;
  for (const RematerializationBlock& block : trades.blocks()) {
    kept += WideBytes{block.activation_bytes} + block.output_bytes;
    working = std::max(working, block.kept_working_bytes);
    waiting = std::max(waiting, block.output_grad_bytes);
  }
  return saturated(kept + working + waiting);
}

struct Peaks {
  std::vector<std::int64_t> bytes;
  bool are_all = true;

  // From `least`, a multiple of `unit`, to `most`, at most kMaxPeaks steps.
  void append(std::int64_t least, std::int64_t most, std::int64_t unit) {
    if (most < least) return;
    const std::int64_t num_units = (most - least) / unit;
    const std::int64_t step = (num_units + kMaxPeaks - 1) / kMaxPeaks;
    are_all = are_all && step <= 1;
    for (std::int64_t units = 0; units < num_units; units += std::max<std::int64_t>(1, step)) {
      bytes.push_back(least + units * unit);
    }
    bytes.push_back(least + num_units * unit);
  }
};

// The lowest are the same for every limit, so that what fits into the least bytes is found there again.
Peaks peaks_up_to(const RematerializationTrades& trades, std::int64_t limit_bytes) {
  const std::int64_t unit = common_unit(trades);
  const std::int64_t least = trades.chain().front().bytes;
  const std::int64_t dropping_all = drop_everything_bytes(trades);
  Peaks peaks;
  peaks.append(least, dropping_all, unit);
  if (dropping_all <= kMaxBytes - unit) {
    peaks.append(dropping_all + unit, std::min(limit_bytes, highest_peak_bytes(trades)), unit);
  }
  while (!peaks.bytes.empty() && peaks.bytes.back() > limit_bytes) peaks.bytes.pop_back();
  return peaks;
}

}  // namespace

std::optional<HeldRematerialization> held_within(const RematerializationTrades& trades, std::int64_t bytes,
                                                 int num_held) {
  std::optional<HeldRematerialization> best;
  const Peaks peaks = peaks_up_to(trades, bytes);
  bool is_exact = peaks.are_all && trades.is_exact();
  Share share;
  for (const std::int64_t peak_bytes : peaks.bytes) {
    share.peak_bytes = peak_bytes;
    if (num_held > 1) share.kept_bytes = (bytes - peak_bytes) / (num_held - 1);
    const WaySearch search(trades, share);
    is_exact = is_exact && search.is_exact();
    const Ways& ways = search.to_the_end();
    if (ways.empty()) continue;
    share.recompute_seconds = ways.back().recompute_seconds;
    best = HeldRematerialization{search.read_off(static_cast<int>(ways.size()) - 1)};
  }
  if (best) best->is_exact = is_exact;
  return best;
}

std::int64_t least_held_bytes(const RematerializationTrades& trades, int num_held) {
  std::int64_t least = kMaxBytes;
  for (const std::int64_t peak_bytes : peaks_up_to(trades, drop_everything_bytes(trades)).bytes) {
    Share share;
    share.peak_bytes = peak_bytes;
    const WaySearch search(trades, share);
    if (search.to_the_end().empty()) continue;
    const std::int64_t kept_bytes = search.to_the_end().front().kept_bytes;
    if (num_held > 1 && kept_bytes > (kMaxBytes - peak_bytes) / (num_held - 1)) continue;
    least = std::min(least, (num_held - 1) * kept_bytes + peak_bytes);
  }
  return least;
}

}  // namespace gpipe
