// What a rank is about to do, as a record, and records that are no call.
#include "gpipe/execute/group/step_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/error.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

StepCall some_call() {
  StepCall call;
  call.name = "train_step";
  call.step = std::int64_t{1} << 40;
  call.training = true;
  call.needs_grad = true;
  call.input_rows = 8;
  call.requires_grad = {true, false};
  call.idle = {0, 3};
  call.refusal = "no \xff reason";
  return call;
}

TEST(StepCall, ComesBackFromItsRecord) {
  const StepCall again = read_step_call(to_record(some_call()));
  EXPECT_EQ(again.name, "train_step");
  EXPECT_EQ(again.step, std::int64_t{1} << 40);
  EXPECT_TRUE(again.training);
  EXPECT_FALSE(again.grad_mode);
  EXPECT_TRUE(again.needs_grad);
  EXPECT_EQ(again.input_rows, 8);
  EXPECT_EQ(again.target_rows, -1);
  EXPECT_THAT(again.requires_grad.value(), ElementsAre(true, false));
  EXPECT_THAT(again.idle, ElementsAre(0, 3));
  EXPECT_EQ(again.assembly, -1);
  EXPECT_EQ(again.refusal, "no \xff reason");
  EXPECT_FALSE(read_step_call(to_record(StepCall())).requires_grad);
}

TEST(StepCall, MayComeWithMoreIfThatIsAskedFor) {
  WireRecord record = to_record(some_call());
  record.add("more", 1);
  EXPECT_THAT([&] { read_step_call(record); },
              ThrowsMessage<InvalidArgument>("this is not a call of a rank: 'more' does not belong there"));
  WireRecord rest;
  EXPECT_EQ(read_step_call(record, &rest).name, "train_step");
  EXPECT_EQ(rest.fields().size(), 1U);
}

TEST(StepCall, OfARecordThatIsNoneIsRefused) {
  const auto expect_refusal = [](const StepCall& call, const std::string& why) {
    EXPECT_THAT([&] { read_step_call(to_record(call)); }, ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  StepCall call = some_call();
  call.input_rows = -2;
  expect_refusal(call, "'input_rows' is -2");
  call = some_call();
  call.idle = {0, -1};
  expect_refusal(call, "'idle' is -1");
  call = some_call();
  call.assembly = -2;
  expect_refusal(call, "'assembly' is -2");
  EXPECT_THROW(read_step_call({}), InvalidArgument);
}

}  // namespace
}  // namespace gpipe::detail
