#include "gpipe/plan/rematerialize.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/checked_rematerialization.h"
#include "gpipe/plan/rematerializer.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::RematerializationTrades;
using detail::require;
using detail::saturated;
using detail::WideBytes;

constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();
constexpr int kMaxBlocks = 64;
// Of all lists of a chain together, some hundred megabytes at most, and of one.
constexpr std::size_t kMaxTradesInAll = 4'000'000;
constexpr std::size_t kMaxTrades = 2000;
constexpr std::int64_t kMaxPeaks = 64;  // that are tried, below and above what dropping everything takes
constexpr std::size_t kMaxWays = 256;

// One layer, or several neighbours that are dropped or kept together.
struct Block {
  double forward_seconds = 0;
  std::int64_t activation_bytes = 0;
  std::int64_t output_bytes = 0;
  std::int64_t output_grad_bytes = 0;
  std::int64_t kept_working_bytes = 0;     // where its layers keep their activations
  std::int64_t dropped_working_bytes = 0;  // where they do not
};

Block make_block(const std::vector<RematerializationCosts>& costs, int begin, int end) {
  Block block;
  for (int layer = begin; layer < end; ++layer) {
    const RematerializationCosts& one = costs[layer];
    const std::int64_t working_bytes = std::max(one.working_bytes, one.activation_bytes);
    block.kept_working_bytes = std::max(block.kept_working_bytes, block.activation_bytes + working_bytes);
    block.dropped_working_bytes = std::max(block.dropped_working_bytes, working_bytes);
    block.forward_seconds += one.forward_seconds;
    block.activation_bytes += one.activation_bytes;
  }
  block.output_bytes = costs[end - 1].output_bytes;
  block.output_grad_bytes = costs[end - 1].output_grad_bytes;
  return block;
}

// Within `bytes` the recompute can take as little as `recompute_seconds`.
struct Trade {
  std::int64_t bytes = 0;
  double recompute_seconds = 0;
  int run_end = 0;  // of the run that begins with the first block; 0 if the first block is kept
};

using Trades = std::vector<Trade>;

// The fastest within so many bytes. REQUIRES: that there is one.
const Trade& best_within(const Trades& trades, std::int64_t bytes) {
  const auto next = std::upper_bound(trades.begin(), trades.end(), bytes,
                                     [](std::int64_t limit, const Trade& trade) { return limit < trade.bytes; });
  return *(next - 1);
}

// Appends a trade unless it is in vain. REQUIRES: bytes not below those of the last one.
void append(Trades& trades, const Trade& trade) {
  if (!trades.empty() && trade.recompute_seconds >= trades.back().recompute_seconds) return;
  if (!trades.empty() && trade.bytes == trades.back().bytes) trades.pop_back();
  trades.push_back(trade);
}

// The best of both; on a draw, that of `a`.
void merge(const Trades& a, const Trades& b, Trades& merged) {
  merged.clear();
  auto left = a.begin();
  auto right = b.begin();
  while (left != a.end() || right != b.end()) {
    const bool take_left = right == b.end() || (left != a.end() && left->bytes <= right->bytes);
    append(merged, take_left ? *left++ : *right++);
  }
}

// Drops a run, which takes the bytes of its input and the seconds of its forward: then come the rest, and the run
// again, each with all bytes that the input leaves.
void drop(const Trade& run, std::int64_t working_bytes, const Trades& rest, const Trades& again, Trades& trades) {
  trades.clear();
  std::size_t in_rest = 0;
  std::size_t in_again = 0;
  std::int64_t bytes = std::max({working_bytes, rest.front().bytes, again.front().bytes});
  while (bytes < kMaxBytes) {
    while (in_rest + 1 < rest.size() && rest[in_rest + 1].bytes <= bytes) ++in_rest;
    while (in_again + 1 < again.size() && again[in_again + 1].bytes <= bytes) ++in_again;
    append(trades,
           {run.bytes + bytes,
            run.recompute_seconds + rest[in_rest].recompute_seconds + again[in_again].recompute_seconds, run.run_end});
    bytes = std::min(in_rest + 1 < rest.size() ? rest[in_rest + 1].bytes : kMaxBytes,
                     in_again + 1 < again.size() ? again[in_again + 1].bytes : kMaxBytes);
  }
}

}  // namespace

// Note [Trades, not slots]
// Published programmes for this problem cut the memory into some hundred slots and round every size up to them: with
// many layers the rounding adds up, and near the least memory nothing fits any more. Here an interval of blocks has the
// list of its trades: bytes ascending, seconds descending, none in vain. They are bytes and seconds of real
// rematerializations, so nothing is rounded. A list that gets too long is thinned, but keeps its ends: the least bytes
// that are feasible and what keeping everything takes stay exact.
class detail::RematerializationTrades {
 public:
  // REQUIRES: at least one block, and bytes that add up to less than 2^63.
  explicit RematerializationTrades(std::vector<Block> blocks)
      : blocks_(std::move(blocks)),
        max_trades_(std::clamp<std::size_t>(kMaxTradesInAll / (blocks_.size() * blocks_.size()), 2, kMaxTrades)),
        again_((blocks_.size() + 1) * (blocks_.size() + 2), Trades{Trade{}}),
        behind_(again_) {
    for (int length = 1; length <= num_blocks(); ++length) {
      for (int begin = 0; begin + length <= num_blocks(); ++begin) {
        const int end = begin + length;
        const std::int64_t waiting_bytes = blocks_[end - 1].output_grad_bytes;
        // A run that is nested in itself as a whole would gain nothing.
        again_[at(begin, end)] = best(begin, end, 0, waiting_bytes, length - 1);
        behind_[at(begin, end)] = best(begin, end, input_bytes(begin), waiting_bytes, length);
      }
    }
    for (int begin = num_blocks() - 1; begin >= 0; --begin) {
      behind_[at(begin, whole_chain())] = best(begin, whole_chain(), input_bytes(begin), 0, num_blocks() - begin);
    }
    again_[at(0, whole_chain())] = behind_[at(0, whole_chain())];
  }

  // The `end` of the whole chain in its first forward; a run that ends with the last block ends at num_blocks().
  int whole_chain() const { return num_blocks() + 1; }

  // Of a run forwarded again, besides its input, or of the whole chain; never empty.
  const Trades& again(int begin, int end) const { return again_[at(begin, end)]; }
  // And the runs in it, of blocks, not layers. REQUIRES: bytes >= again(begin, end).front().bytes.
  Rematerialization within(int begin, int end, std::int64_t bytes) const {
    Rematerialization runs;
    for (int block = begin; block < std::min(end, num_blocks());) {
      const int run_end = best_within((block == begin ? again_ : behind_)[at(block, end)], bytes).run_end;
      if (run_end == 0) {
        bytes -= blocks_[block++].activation_bytes;
        continue;
      }
      if (block != begin) bytes -= input_bytes(block);
      runs.push_back({block, run_end, within(block, run_end, bytes)});
      block = run_end;
    }
    return runs;
  }

  const std::vector<Block>& blocks() const { return blocks_; }
  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  // What a run that begins there takes for its input.
  std::int64_t input_bytes(int begin) const { return begin == 0 ? 0 : blocks_[begin - 1].output_bytes; }

  // No list was thinned.
  bool is_exact() const { return is_exact_; }

 private:
  std::size_t at(int begin, int end) const { return static_cast<std::size_t>(begin) * (blocks_.size() + 2) + end; }

  // Of blocks that are forwarded, while a gradient of `waiting_bytes` waits, then backwarded. A run at their beginning
  // has at most `longest_run` of them, and takes `input_bytes`.
  Trades best(int begin, int end, std::int64_t input_bytes, std::int64_t waiting_bytes, int longest_run) {
    Trades trades;
    Trades dropped;
    Trades merged;
    const Block& first = blocks_[begin];
    for (const Trade& rest : behind_[at(begin + 1, end)]) {
      append(trades, {std::max(first.kept_working_bytes + waiting_bytes, first.activation_bytes + rest.bytes),
                      rest.recompute_seconds, 0});
    }
    Trade run = {input_bytes, 0, 0};
    std::int64_t working_bytes = 0;
    for (run.run_end = begin + 1; run.run_end <= begin + longest_run; ++run.run_end) {
      const Block& last = blocks_[run.run_end - 1];
      working_bytes = std::max(working_bytes, waiting_bytes + last.dropped_working_bytes);
      run.recompute_seconds += last.forward_seconds;
      drop(run, working_bytes, behind_[at(run.run_end, end)], again(begin, run.run_end), dropped);
      merge(trades, dropped, merged);
      trades.swap(merged);
    }
    thin(trades);
    trades.shrink_to_fit();
    return trades;
  }

  // The fastest of each of so many equal steps of bytes, and the first.
  void thin(Trades& trades) {
    if (trades.size() <= max_trades_) return;
    is_exact_ = false;
    const double least = static_cast<double>(trades.front().bytes);
    const double steps = static_cast<double>(max_trades_ - 2);
    const double scale = steps / (static_cast<double>(trades.back().bytes) - least);
    const auto step = [&](const Trade& trade) {
      return static_cast<std::int64_t>((static_cast<double>(trade.bytes) - least) * scale);
    };
    std::size_t kept = 1;
    for (std::size_t index = 1; index < trades.size(); ++index) {
      const bool is_last_of_step = index + 1 == trades.size() || step(trades[index]) != step(trades[index + 1]);
      if (is_last_of_step) trades[kept++] = trades[index];
    }
    trades.resize(kept);
  }

  std::vector<Block> blocks_;
  std::size_t max_trades_;
  std::vector<Trades> again_;   // [begin, end): a run forwarded again
  std::vector<Trades> behind_;  // [begin, end): the same from its block `begin` on, which is not its first
  bool is_exact_ = true;
};

namespace {

// Note [One peak, the others keep]
// One micro-batch works at a time; the others hold what they keep between forward and backward. A stage that holds h of
// them peaks at (h - 1) kept_bytes + peak_bytes. So what is kept in the first forward weighs more than what is kept
// again in the backward, and the best of one micro-batch is not the best of several. For each of a number of peaks, the
// ways through the first forward within it: what they keep against the recompute that follows.

// A way through the blocks in front of one, in the first forward.
struct Way {
  std::int64_t kept_bytes = 0;   // left behind
  double recompute_seconds = 0;  // that will follow in the backward
  int from = 0;                  // the block in front of which the last step began
  int way = 0;                   // by which it came there
  bool is_run = false;           // else the step is one block that is kept
};
using Ways = std::vector<Way>;  // bytes ascending, seconds descending

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

// All ways of one micro-batch.
class WaySearch {
 public:
  // What the micro-batch that works may take and leave behind, and the recompute it has to stay below.
  WaySearch(const RematerializationTrades& trades, std::int64_t peak_bytes, std::int64_t kept_bytes = kMaxBytes,
            double recompute_seconds = std::numeric_limits<double>::infinity())
      : trades_(trades), peak_bytes_(peak_bytes), kept_bytes_(kept_bytes), recompute_seconds_(recompute_seconds) {
    const int num_blocks = trades.num_blocks();
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
        const std::int64_t left_bytes = peak_bytes_ - last.kept_bytes;
        runs.push_back({last.from, block, trades_.within(last.from, block, left_bytes)});
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
      Way way = ways_[block][index];
      way.from = block;
      way.way = static_cast<int>(index);
      const Block& first = trades_.blocks()[block];
      if (way.kept_bytes + first.kept_working_bytes <= peak_bytes_) {
        add(block + 1, way, first.activation_bytes, 0, false);
      }
      // All runs that begin with the block.
      const std::int64_t input_bytes = trades_.input_bytes(block);
      const std::int64_t left_bytes = peak_bytes_ - way.kept_bytes - input_bytes;
      for (int end = block + 1; end <= trades_.num_blocks(); ++end) {
        const Block& last = trades_.blocks()[end - 1];
        if (last.dropped_working_bytes > left_bytes) break;  // nor does a longer run fit
        way.recompute_seconds += last.forward_seconds;
        const Trades& again = trades_.again(block, end);
        if (again.front().bytes > left_bytes) continue;
        add(end, way, input_bytes, best_within(again, left_bytes).recompute_seconds, true);
      }
    }
  }

  void add(int block, Way way, std::int64_t kept_bytes, double recompute_seconds, bool is_run) {
    way.kept_bytes += kept_bytes;
    way.recompute_seconds += recompute_seconds;
    way.is_run = is_run;
    if (way.kept_bytes > kept_bytes_ || way.recompute_seconds >= recompute_seconds_) return;
    ways_[block].push_back(way);
  }

  const RematerializationTrades& trades_;
  const std::int64_t peak_bytes_;
  const std::int64_t kept_bytes_;
  const double recompute_seconds_;
  std::vector<Ways> ways_;  // [block]: to the front of it
  bool is_exact_ = true;
};

// Running the chain again takes no less than its first forward.
std::int64_t drop_everything_bytes(const RematerializationTrades& trades) {
  return trades.again(0, trades.num_blocks()).front().bytes;
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
  std::int64_t unit = 0;  // all sizes, and so all peaks, are multiples of it
  WideBytes kept = 0;
  std::int64_t working = 0;
  std::int64_t waiting = 0;
  for (const Block& block : trades.blocks()) {
    for (const std::int64_t bytes : {block.activation_bytes, block.output_bytes, block.output_grad_bytes,
                                     block.kept_working_bytes, block.dropped_working_bytes}) {
      unit = std::gcd(unit, bytes);
    }
    kept += WideBytes{block.activation_bytes} + block.output_bytes;
    working = std::max(working, block.kept_working_bytes);
    waiting = std::max(waiting, block.output_grad_bytes);
  }
  unit = std::max<std::int64_t>(unit, 1);
  const std::int64_t highest = saturated(kept + working + waiting);  // everything is kept, and every input of a run
  const std::int64_t dropping_all = drop_everything_bytes(trades);
  Peaks peaks;
  peaks.append(trades.again(0, trades.whole_chain()).front().bytes, dropping_all, unit);
  if (dropping_all <= kMaxBytes - unit) peaks.append(dropping_all + unit, std::min(limit_bytes, highest), unit);
  while (!peaks.bytes.empty() && peaks.bytes.back() > limit_bytes) peaks.bytes.pop_back();
  return peaks;
}

// The fastest found for `num_held` micro-batches within `bytes`; none if there is none. REQUIRES, here and below:
// num_held is above 1.
std::optional<RematerializationPlan> held_within(const RematerializationTrades& trades, std::int64_t bytes,
                                                 int num_held) {
  std::optional<RematerializationPlan> best;
  const Peaks peaks = peaks_up_to(trades, bytes);
  bool is_exact = peaks.are_all && trades.is_exact();
  double least_seconds = std::numeric_limits<double>::infinity();
  for (const std::int64_t peak_bytes : peaks.bytes) {
    const WaySearch search(trades, peak_bytes, (bytes - peak_bytes) / (num_held - 1), least_seconds);
    is_exact = is_exact && search.is_exact();
    const Ways& ways = search.to_the_end();
    if (ways.empty()) continue;
    least_seconds = ways.back().recompute_seconds;
    best = RematerializationPlan{search.read_off(static_cast<int>(ways.size()) - 1), {}, true};
  }
  if (best) best->is_exact = is_exact;
  return best;
}

// Bytes for which `held_within` finds one, the least found; 2^63 - 1 if even that is not enough.
std::int64_t least_held_bytes(const RematerializationTrades& trades, int num_held) {
  std::int64_t least = kMaxBytes;
  for (const std::int64_t peak_bytes : peaks_up_to(trades, drop_everything_bytes(trades)).bytes) {
    const WaySearch search(trades, peak_bytes);
    if (search.to_the_end().empty()) continue;
    const std::int64_t kept_bytes = search.to_the_end().front().kept_bytes;
    if (kept_bytes > (kMaxBytes - peak_bytes) / (num_held - 1)) continue;
    least = std::min(least, (num_held - 1) * kept_bytes + peak_bytes);
  }
  return least;
}

void from_blocks_to_layers(std::vector<RematerializedRun>& runs, const std::vector<int>& block_begin) {
  for (RematerializedRun& run : runs) {
    run.begin = block_begin[run.begin];
    run.end = block_begin[run.end];
    from_blocks_to_layers(run.nested, block_begin);
  }
}

}  // namespace

detail::Rematerializer::Rematerializer(std::vector<RematerializationCosts> costs) : costs_(std::move(costs)) {
  check_rematerialization_costs(costs_);
  const int num_layers = static_cast<int>(costs_.size());
  const int num_blocks = std::min(num_layers, kMaxBlocks);
  for (int block = 0; block <= num_blocks; ++block) {  // equal numbers of layers each, as far as possible
    block_begin_.push_back(static_cast<int>(std::int64_t{num_layers} * block / num_blocks));
  }
  std::vector<Block> blocks;
  for (int block = 0; block < num_blocks; ++block) {
    blocks.push_back(make_block(costs_, block_begin_[block], block_begin_[block + 1]));
  }
  trades_ = std::make_shared<const RematerializationTrades>(std::move(blocks));
}

std::int64_t detail::Rematerializer::least_bytes(int num_held) const {
  require(num_held >= 1, "num_held is {}; expected at least 1", num_held);
  return num_held == 1 ? trades_->again(0, trades_->whole_chain()).front().bytes : least_held_bytes(*trades_, num_held);
}

RematerializationPlan detail::Rematerializer::plan(std::int64_t limit_bytes, int num_held) const {
  require(num_held >= 1, "num_held is {}; expected at least 1", num_held);
  require(limit_bytes >= 0, "the memory limit is {} bytes; expected 0 or more", limit_bytes);
  const RematerializationOutcome keeping_all = evaluate(costs_, {});
  const std::int64_t left_bytes = limit_bytes - keeping_all.peak_bytes;  // for what the other micro-batches keep
  const bool fits = left_bytes >= 0 && (num_held == 1 || keeping_all.kept_bytes <= left_bytes / (num_held - 1));
  if (fits) return {{}, keeping_all, true};
  std::optional<RematerializationPlan> plan;
  if (num_held > 1) {
    plan = held_within(*trades_, limit_bytes, num_held);
  } else if (limit_bytes >= least_bytes()) {
    plan = RematerializationPlan{trades_->within(0, trades_->whole_chain(), limit_bytes), {}, trades_->is_exact()};
  }
  if (!plan) {
    const std::int64_t least = least_bytes(num_held);
    throw InfeasibleError(
        fmt::format("no rematerialization of {} layers{} fits into {} bytes: the least that would do is {} bytes; "
                    "raise the limit, use more stages, or smaller micro-batches",
                    costs_.size(), num_held == 1 ? "" : fmt::format(" with {} micro-batches held", num_held),
                    limit_bytes, least),
        least - limit_bytes, 0);
  }
  from_blocks_to_layers(plan->rematerialization, block_begin_);
  plan->outcome = evaluate(costs_, plan->rematerialization);
  plan->is_exact = plan->is_exact && block_begin_.size() == costs_.size() + 1;
  return *std::move(plan);
}

std::vector<RematerializationPlan> detail::Rematerializer::frontier(int max_plans) const {
  require(max_plans >= 2, "max_plans is {}; expected at least 2", max_plans);
  const std::int64_t least = least_bytes();
  const std::int64_t range = std::max<std::int64_t>(0, evaluate(costs_, {}).peak_bytes - least);
  std::vector<RematerializationPlan> plans;
  for (int step = 0; step < max_plans; ++step) {
    const std::int64_t whole = range / (max_plans - 1);
    const std::int64_t part = range % (max_plans - 1);
    RematerializationPlan next = plan(least + whole * step + part * step / (max_plans - 1));
    if (plans.empty() || next.outcome.seconds < plans.back().outcome.seconds) plans.push_back(std::move(next));
  }
  return plans;
}

RematerializationPlan rematerialize(const std::vector<RematerializationCosts>& costs, std::int64_t limit_bytes,
                                    int num_held) {
  return detail::Rematerializer(costs).plan(limit_bytes, num_held);
}

}  // namespace gpipe
