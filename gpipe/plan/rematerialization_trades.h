// The trades of bytes against recompute in a chain of blocks: the dynamic programme behind `rematerialize`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gpipe/plan/rematerialization.h"

namespace gpipe {

// One layer, or several neighbours that are dropped or kept together.
struct RematerializationBlock {
  double forward_seconds = 0;
  std::int64_t activation_bytes = 0;
  std::int64_t output_bytes = 0;
  std::int64_t output_grad_bytes = 0;
  std::int64_t kept_working_bytes = 0;     // where its layers keep their activations
  std::int64_t dropped_working_bytes = 0;  // where they do not
};

// Within `bytes` the recompute can take as little as `recompute_seconds`.
struct RematerializationTrade {
  std::int64_t bytes = 0;
  double recompute_seconds = 0;
  int run_end = 0;  // of the run that begins with the first block; 0 if the first block is kept
};

// The fastest within so many bytes. REQUIRES: that there is one.
const RematerializationTrade& best_within(const std::vector<RematerializationTrade>& trades, std::int64_t bytes);

// Note [Trades, not slots]
// Published programmes for this problem cut the memory into some hundred slots and round every size up to them: with
// many layers the rounding adds up, and near the least memory nothing fits any more. Here an interval of blocks has the
// list of its trades: bytes ascending, seconds descending, none in vain. They are bytes and seconds of real
// rematerializations, so nothing is rounded. A list that gets too long is thinned, but keeps its ends: the least bytes
// that are feasible and what keeping everything takes stay exact.
class RematerializationTrades {
 public:
  // REQUIRES: at least one block, and bytes that add up to less than 2^63.
  explicit RematerializationTrades(std::vector<RematerializationBlock> blocks);

  // Of the whole chain; never empty.
  const std::vector<RematerializationTrade>& chain() const { return first_[0]; }

  // Of blocks, not layers. REQUIRES: bytes >= chain().front().bytes.
  Rematerialization within(std::int64_t bytes) const;

  // Of a run forwarded again, besides its input; never empty. And what it does within so many bytes.
  const std::vector<RematerializationTrade>& again(int begin, int end) const { return again_[at(begin, end)]; }
  std::vector<RematerializedRun> nested_within(int begin, int end, std::int64_t bytes) const;

  const std::vector<RematerializationBlock>& blocks() const { return blocks_; }
  // What a run that begins there takes for its input.
  std::int64_t input_bytes(int begin) const { return begin == 0 ? 0 : blocks_[begin - 1].output_bytes; }

  // No list was thinned.
  bool is_exact() const { return is_exact_; }

 private:
  using Trades = std::vector<RematerializationTrade>;
  using TradesFrom = std::function<const Trades&(int block)>;

  // Blocks that are forwarded, then backwarded.
  struct Interval {
    int begin = 0;
    int end = 0;
    std::int64_t input_bytes = 0;    // what a run at the beginning takes
    std::int64_t waiting_bytes = 0;  // of the gradient that waits during the forward
    int longest_run = 0;             // in blocks, at the beginning
  };

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  std::size_t at(int begin, int end) const { return static_cast<std::size_t>(begin) * (blocks_.size() + 1) + end; }
  // `behind(block)` are the trades from that block on to the end of the interval.
  Trades best(const Interval& interval, const TradesFrom& behind);
  void thin(Trades& trades);
  std::vector<RematerializedRun> read_off(int begin, int end, std::int64_t bytes, const TradesFrom& from) const;

  std::vector<RematerializationBlock> blocks_;
  std::size_t max_trades_;
  std::vector<Trades> first_;  // [begin]: to the end of the chain, in the first forward
  std::vector<Trades> again_;  // [begin, end): a run forwarded again
  std::vector<Trades>
      behind_;  // [begin, end): a run forwarded again, from its block `begin` on, which is not its first
  bool is_exact_ = true;
};

}  // namespace gpipe
