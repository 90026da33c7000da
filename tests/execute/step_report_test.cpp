// What ranks tell each other of a step that they have run, put together, and records that are no report.
#include "gpipe/execute/group/step_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/error.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Told {
  StepReport report;
  StepResult result;
  WireRecord record() const { return to_record(report, result); }
};

// Of a step of two workers, with a stage each.
Told told_by(int worker) {
  Told told;
  StepReport& report = told.report;
  report.start = std::chrono::steady_clock::time_point(std::chrono::seconds(100 + worker));
  report.worker = worker;
  report.stages = {worker};
  told.result.timeline.num_stages = 2;
  told.result.timeline.workers.resize(2);
  told.result.timeline.workers[worker].spans = {{{ActionKind::kForward, worker, 0}, 0.25, 0.5},
                                                {{ActionKind::kBackward, worker, 0}, 0.5, 1}};
  told.result.timeline.workers[worker].processor_seconds = 0.5 + worker;
  told.result.memory.resize(2);
  told.result.memory[worker] = {1 + worker, 2, 3, 4, 5, 6};
  if (worker == 1) {
    report.loss.losses = torch::tensor({1.5, 0.25});
    report.loss.weights = torch::tensor({2.0, 1.0}, torch::kDouble);
    report.loss.metrics["\xff"] = {torch::tensor({3.0F}), true};
    report.loss.metrics["rows"] = {torch::ones({2, 2}), false};
    report.refusal = "the loss is not finite";
  }
  return told;
}

World world_of_two() {
  World world;
  world.size = world.local_size = 2;
  return world;
}

TEST(StepReport, OfAllRanksMakesOneResult) {
  for (const bool has_one_clock : {true, false}) {
    World world = world_of_two();
    if (!has_one_clock) world.local_size = 1;
    StepResult result = told_by(0).result;
    EXPECT_EQ(merge(result, {told_by(0).record(), told_by(1).record()}, world, 1), "the loss is not finite");
    const std::vector<Span>& spans = result.timeline.workers[1].spans;
    ASSERT_EQ(spans.size(), 2U);
    EXPECT_EQ(spans[1].action, (Action{ActionKind::kBackward, 1, 0}));
    EXPECT_EQ(spans[1].start_seconds, has_one_clock ? 1.5 : 0.5);
    EXPECT_EQ(spans[1].end_seconds, has_one_clock ? 2 : 1);
    EXPECT_EQ(result.timeline.workers[0].spans[0].start_seconds, 0.25);
    EXPECT_EQ(result.timeline.workers[0].processor_seconds, 0.5);
    EXPECT_EQ(result.timeline.workers[1].processor_seconds, 1.5);
    EXPECT_EQ(result.memory[0].live_bytes, 1);
    EXPECT_EQ(result.memory[1].live_bytes, 2);
    EXPECT_EQ(result.memory[1].input_bytes, 6);
    EXPECT_EQ(result.weight, 3);
    EXPECT_EQ(result.loss.item<float>(), 1.75F / 3);
    EXPECT_EQ(result.metrics.at("\xff").item<float>(), 1);
    EXPECT_EQ(result.metrics.at("rows").numel(), 4);
  }
}

TEST(StepReport, ThatIsNoneIsRefused) {
  const auto expect_refusal = [](const WireRecord& record, const std::string& why) {
    StepResult result = told_by(0).result;
    EXPECT_THAT(
        [&] {
          merge(result, {told_by(0).record(), record}, world_of_two(), 1);
        },
        ThrowsMessage<InvalidArgument>(HasSubstr("this is not a report of a step: " + why)));
  };
  Told told = told_by(1);
  told.result.timeline.workers.resize(3);
  told.report.worker = 2;
  expect_refusal(told.record(), "'worker' is 2");
  told = told_by(1);
  told.result.timeline.workers[1].spans[0].action.kind = static_cast<ActionKind>(kNumActionKinds);
  expect_refusal(told.record(), "'span_kinds' is 6");
  told = told_by(1);
  told.result.memory.resize(3);
  told.report.stages = {2};
  expect_refusal(told.record(), "'memory_stages' is 2");
  told = told_by(1);
  told.report.loss.weights = torch::ones(2);
  expect_refusal(told.record(), "'weights' are not doubles");
  WireRecord more = told_by(1).record();
  more.add("more", 1);
  expect_refusal(more, "'more' does not belong there");
  expect_refusal({}, "'worker' is missing");
}

}  // namespace
}  // namespace gpipe::detail
