// ZB-H1 and ZB-H2: the order of 1F1B, with W filled in.
#include <algorithm>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/placement.h"
#include "gpipe/schedule/generators/weight_grad_fill.h"

namespace gpipe::schedules {
namespace {

// `warm_up(stage)` forwards, then one I and one F in turn.
template <typename WarmUp>
Schedule split_one_f_one_b(Schedule schedule, const WarmUp& warm_up) {
  const int num_micro_batches = schedule.num_micro_batches;
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    auto& actions = schedule.workers[stage];
    int forward = 0;
    for (; forward < std::min(num_micro_batches, warm_up(stage)); ++forward) {
      actions.push_back({ActionKind::kForward, stage, forward});
    }
    for (int backward = 0; backward < num_micro_batches; ++backward) {
      actions.push_back({ActionKind::kInputGrad, stage, backward});
      if (forward < num_micro_batches) actions.push_back({ActionKind::kForward, stage, forward++});
    }
  }
  return schedule;
}

void fill(Schedule& schedule, int max_live) {
  if (!fill_weight_grads(schedule, max_live))
    throw Error(schedule.name + ": the order does not fit its memory; a defect");
}

}  // namespace

Schedule zb_h1(int num_workers, int num_micro_batches) {
  Schedule schedule = split_one_f_one_b(loop_schedule("zb-h1", num_workers, num_micro_batches, 1),
                                        [&](int stage) { return num_workers - stage; });
  fill(schedule, num_workers);
  return schedule;
}

Schedule zb_h2(int num_workers, int num_micro_batches) {
  Schedule schedule = split_one_f_one_b(loop_schedule("zb-h2", num_workers, num_micro_batches, 1),
                                        [&](int stage) { return 2 * (num_workers - stage) - 1; });
  fill(schedule, 2 * num_workers - 1);
  return schedule;
}

}  // namespace gpipe::schedules
