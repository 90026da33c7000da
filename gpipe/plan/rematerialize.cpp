#include "gpipe/plan/rematerialize.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/rematerialization_held.h"
#include "gpipe/plan/rematerialization_trades.h"

namespace gpipe {
namespace {

constexpr int kMaxBlocks = 64;

// Equal numbers of layers each, as far as possible.
std::vector<int> make_block_begins(int num_layers) {
  const int num_blocks = std::min(num_layers, kMaxBlocks);
  std::vector<int> begins;
  for (int block = 0; block <= num_blocks; ++block) {
    begins.push_back(static_cast<int>(static_cast<std::int64_t>(num_layers) * block / num_blocks));
  }
  return begins;
}

RematerializationBlock make_block(const std::vector<RematerializationCosts>& costs, int begin, int end) {
  RematerializationBlock block;
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

void from_blocks_to_layers(std::vector<RematerializedRun>& runs, const std::vector<int>& block_begin) {
  for (RematerializedRun& run : runs) {
    run.begin = block_begin[run.begin];
    run.end = block_begin[run.end];
    from_blocks_to_layers(run.nested, block_begin);
  }
}

void check_num_held(int num_held) {
  if (num_held < 1) throw InvalidArgument(fmt::format("num_held is {}; expected at least 1", num_held));
}

// See Note [One peak, the others keep].
bool fits(const RematerializationOutcome& outcome, std::int64_t limit_bytes, int num_held) {
  const std::int64_t left_bytes = limit_bytes - outcome.peak_bytes;
  return left_bytes >= 0 && (num_held == 1 || outcome.kept_bytes <= left_bytes / (num_held - 1));
}

}  // namespace

Rematerializer::Rematerializer(std::vector<RematerializationCosts> costs) : costs_(std::move(costs)) {
  check_rematerialization_costs(costs_);
  block_begin_ = make_block_begins(static_cast<int>(costs_.size()));
  std::vector<RematerializationBlock> blocks;
  for (std::size_t block = 0; block + 1 < block_begin_.size(); ++block) {
    blocks.push_back(make_block(costs_, block_begin_[block], block_begin_[block + 1]));
  }
  trades_ = std::make_shared<const RematerializationTrades>(std::move(blocks));
}

std::int64_t Rematerializer::least_bytes(int num_held) const {
  check_num_held(num_held);
  return num_held == 1 ? trades_->chain().front().bytes : least_held_bytes(*trades_, num_held);
}

RematerializationPlan Rematerializer::plan(std::int64_t limit_bytes, int num_held) const {
  check_num_held(num_held);
  if (limit_bytes < 0) {
    throw InvalidArgument(fmt::format("the memory limit is {} bytes; expected 0 or more", limit_bytes));
  }
  RematerializationPlan plan;
  plan.outcome = evaluate(costs_, {});
  if (fits(plan.outcome, limit_bytes, num_held)) return plan;
  std::optional<HeldRematerialization> found;
  if (num_held > 1) {
    found = held_within(*trades_, limit_bytes, num_held);
  } else if (limit_bytes >= least_bytes()) {
    found = HeldRematerialization{trades_->within(limit_bytes), trades_->is_exact()};
  }
  if (!found) fail_infeasible(limit_bytes, num_held);
  plan.rematerialization = std::move(found->rematerialization);
  from_blocks_to_layers(plan.rematerialization, block_begin_);
  plan.outcome = evaluate(costs_, plan.rematerialization);
  plan.is_exact = found->is_exact && block_begin_.size() == costs_.size() + 1;
  return plan;
}

void Rematerializer::fail_infeasible(std::int64_t limit_bytes, int num_held) const {
  const std::int64_t least = least_bytes(num_held);
  throw InfeasibleError(
      fmt::format("no rematerialization of {} layers{} fits into {} bytes: the least that would do is {} bytes; raise "
                  "the limit, use more stages, or smaller micro-batches",
                  costs_.size(), num_held == 1 ? "" : fmt::format(" with {} micro-batches held", num_held), limit_bytes,
                  least),
      least - limit_bytes, 0);
}

std::vector<RematerializationPlan> Rematerializer::frontier(int max_plans) const {
  if (max_plans < 2) throw InvalidArgument(fmt::format("max_plans is {}; expected at least 2", max_plans));
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
  return Rematerializer(costs).plan(limit_bytes, num_held);
}

}  // namespace gpipe
