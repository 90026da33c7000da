#include "gpipe/plan/rematerialization_trades.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace gpipe {
namespace {

using Trade = RematerializationTrade;
using Trades = std::vector<RematerializationTrade>;

// Of all lists of a chain together, some hundred megabytes at most, and of one.
constexpr std::size_t kMaxTradesInAll = 4'000'000;
constexpr std::size_t kMaxTrades = 2000;

const Trades& of_nothing() {
  static const Trades trades = {Trade{}};
  return trades;
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

// Keeps the first block, whatever the rest does.
void keep_first(const RematerializationBlock& block, std::int64_t waiting_bytes, const Trades& rest, Trades& trades) {
  trades.clear();
  for (const Trade& trade : rest) {
    append(trades, {std::max(block.kept_working_bytes + waiting_bytes, block.activation_bytes + trade.bytes),
                    trade.recompute_seconds, 0});
  }
}

// A run at the beginning of an interval.
struct FirstRun {
  int end = 0;
  std::int64_t input_bytes = 0;
  std::int64_t working_bytes = 0;  // of its first forward, and what waits
  double forward_seconds = 0;
};

// Drops the run: then come the rest, and the run again, each with all bytes that the run's input leaves.
void drop_first(const FirstRun& run, const Trades& rest, const Trades& again, Trades& trades) {
  trades.clear();
  std::size_t in_rest = 0;
  std::size_t in_again = 0;
  std::int64_t bytes = std::max({run.working_bytes, rest.front().bytes, again.front().bytes});
  constexpr std::int64_t kNoMore = std::numeric_limits<std::int64_t>::max();
  while (bytes < kNoMore) {
    while (in_rest + 1 < rest.size() && rest[in_rest + 1].bytes <= bytes) ++in_rest;
    while (in_again + 1 < again.size() && again[in_again + 1].bytes <= bytes) ++in_again;
    append(trades,
           {run.input_bytes + bytes,
            run.forward_seconds + rest[in_rest].recompute_seconds + again[in_again].recompute_seconds, run.end});
    bytes = std::min(in_rest + 1 < rest.size() ? rest[in_rest + 1].bytes : kNoMore,
                     in_again + 1 < again.size() ? again[in_again + 1].bytes : kNoMore);
  }
}

}  // namespace

const Trade& best_within(const Trades& trades, std::int64_t bytes) {
  const auto next = std::upper_bound(trades.begin(), trades.end(), bytes,
                                     [](std::int64_t limit, const Trade& trade) { return limit < trade.bytes; });
  return *(next - 1);
}

RematerializationTrades::RematerializationTrades(std::vector<RematerializationBlock> blocks)
    : blocks_(std::move(blocks)),
      max_trades_(std::clamp<std::size_t>(kMaxTradesInAll / (blocks_.size() * blocks_.size()), 2, kMaxTrades)),
      first_(blocks_.size() + 1, of_nothing()),
      again_((blocks_.size() + 1) * (blocks_.size() + 1), of_nothing()),
      behind_(again_) {
  for (int length = 1; length <= num_blocks(); ++length) {
    for (int begin = 0; begin + length <= num_blocks(); ++begin) {
      const int end = begin + length;
      const std::int64_t waiting_bytes = blocks_[end - 1].output_grad_bytes;
      const auto behind = [&](int middle) -> const Trades& { return behind_[at(middle, end)]; };
      // A run that is nested in itself as a whole would gain nothing.
      again_[at(begin, end)] = best({begin, end, 0, waiting_bytes, length - 1}, behind);
      behind_[at(begin, end)] = best({begin, end, input_bytes(begin), waiting_bytes, length}, behind);
    }
  }
  for (int begin = num_blocks() - 1; begin >= 0; --begin) {
    const auto behind = [&](int middle) -> const Trades& { return first_[middle]; };
    first_[begin] = best({begin, num_blocks(), input_bytes(begin), 0, num_blocks() - begin}, behind);
  }
}

Trades RematerializationTrades::best(const Interval& interval, const TradesFrom& behind) {
  Trades trades;
  Trades candidates;
  Trades merged;
  keep_first(blocks_[interval.begin], interval.waiting_bytes, behind(interval.begin + 1), trades);
  FirstRun run;
  run.input_bytes = interval.input_bytes;
  for (run.end = interval.begin + 1; run.end <= interval.begin + interval.longest_run; ++run.end) {
    const RematerializationBlock& last = blocks_[run.end - 1];
    run.working_bytes = std::max(run.working_bytes, interval.waiting_bytes + last.dropped_working_bytes);
    run.forward_seconds += last.forward_seconds;
    drop_first(run, behind(run.end), again_[at(interval.begin, run.end)], candidates);
    merge(trades, candidates, merged);
    trades.swap(merged);
  }
  thin(trades);
  trades.shrink_to_fit();
  return trades;
}

// The fastest of each of so many equal steps of bytes, and the first.
void RematerializationTrades::thin(Trades& trades) {
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

std::vector<RematerializedRun> RematerializationTrades::read_off(int begin, int end, std::int64_t bytes,
                                                                 const TradesFrom& from) const {
  std::vector<RematerializedRun> runs;
  for (int block = begin; block < end;) {
    const int run_end = best_within(from(block), bytes).run_end;
    if (run_end == 0) {
      bytes -= blocks_[block++].activation_bytes;
      continue;
    }
    if (block != begin) bytes -= input_bytes(block);
    runs.push_back({block, run_end, nested_within(block, run_end, bytes)});
    block = run_end;
  }
  return runs;
}

std::vector<RematerializedRun> RematerializationTrades::nested_within(int begin, int end, std::int64_t bytes) const {
  return read_off(begin, end, bytes,
                  [&](int block) -> const Trades& { return (block == begin ? again_ : behind_)[at(block, end)]; });
}

Rematerialization RematerializationTrades::within(std::int64_t bytes) const {
  return read_off(0, num_blocks(), bytes, [this](int block) -> const Trades& { return first_[block]; });
}

}  // namespace gpipe
