// Every generator, K <= 8, v <= 4, M <= 32: valid, and it runs at the capacities the validator computed.
#include <gtest/gtest.h>

#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/simulate.h"
#include "tests/schedule/schedules.h"

namespace gpipe {
namespace {

class Exhaustive : public ::testing::TestWithParam<int> {};

TEST_P(Exhaustive, EveryScheduleIsValidAndRunsAtItsLiveCapacities) {
  const int num_workers = GetParam();
  int num_schedules = 0;
  for (int num_micro_batches = 1; num_micro_batches <= 32; ++num_micro_batches) {
    test::for_each_schedule(
        num_workers, num_micro_batches, 4, [&](const Schedule& schedule, const std::string& description) {
          SCOPED_TRACE(description);
          ++num_schedules;
          const Certificate certificate = validate(schedule);
          EXPECT_TRUE(certificate.canonical);
          SimulateOptions options;
          for (const FlowCertificate& flow : certificate.flows) options.capacities.push_back(flow.live_capacity);
          const Timeline timeline = simulate(schedule, uniform_costs(schedule), options);
          std::size_t num_spans = 0;
          for (const WorkerTimeline& worker : timeline.workers) num_spans += worker.spans.size();
          EXPECT_EQ(num_spans, static_cast<std::size_t>(schedule.num_actions()));

          // At the free capacities nothing waits for room: the same timeline as without limits.
          const Timeline unbounded = simulate(schedule, uniform_costs(schedule));
          for (std::size_t flow = 0; flow < certificate.flows.size(); ++flow) {
            options.capacities[flow] = certificate.flows[flow].free_capacity.value();
          }
          EXPECT_EQ(simulate(schedule, uniform_costs(schedule), options).makespan_seconds, unbounded.makespan_seconds);
        });
  }
  EXPECT_EQ(num_schedules, 32 * (9 + 2 * 4 + 2));
}

INSTANTIATE_TEST_SUITE_P(Workers, Exhaustive, ::testing::Range(1, 9));

}  // namespace
}  // namespace gpipe
