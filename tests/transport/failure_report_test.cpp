// What a rank tells of its end, as a record, and records that are no report.
#include "gpipe/transport/c10d/failure_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/transport/wire_record.h"
#include "ranks.h"
#include "tests/os/reserved_port.h"

namespace gpipe::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

FailureReport some_testimony() { return {2, true, "activation 0 -> 1", 3, "it is gone\xff"}; }

TEST(FailureReport, ComesBackFromItsRecord) {
  const FailureReport again = read_failure_report(to_record(some_testimony()), 3);
  EXPECT_EQ(again.blamed, 2);
  EXPECT_TRUE(again.silent);
  EXPECT_EQ(again.flow, "activation 0 -> 1");
  EXPECT_EQ(again.micro_batch, 3);
  EXPECT_EQ(again.text, "it is gone\xff");
  EXPECT_EQ(read_failure_report(to_record(FailureReport()), 1).blamed, -1);
}

TEST(FailureReport, OfARecordThatIsNoneIsRefused) {
  const auto expect_refusal = [](const WireRecord& record, const std::string& why) {
    EXPECT_THAT([&] { read_failure_report(record, 3); },
                ThrowsMessage<InvalidArgument>(HasSubstr("this is not a failure report: " + why)));
  };
  FailureReport report = some_testimony();
  report.blamed = 3;
  expect_refusal(to_record(report), "'blamed' is 3, not a number from -1 to 2");
  report.blamed = -2;
  expect_refusal(to_record(report), "'blamed' is -2");
  report = some_testimony();
  report.micro_batch = -2;
  expect_refusal(to_record(report), "'micro_batch' is -2");
  WireRecord more = to_record(some_testimony());
  more.add("hint", "none");
  expect_refusal(more, "'hint' does not belong there");
  expect_refusal({}, "'blamed' is missing");
}

TEST(FailureReport, ThatCannotBeReadLeavesTheErrorAsItIs) {
  const test::ReservedPort port;
  const auto errors = run_each(2, [&](int rank) {
    Peers peers(world_of(rank, 2, port.number()));
    if (rank == 1) return;
    peers.store().set("gpipe/failed/1", std::vector<std::uint8_t>{'n', 'o', 'n', 'e'});
    peers.fail(std::make_exception_ptr(PeerError(peers.place_of(1), "it is silent")), /*silent=*/true);
  });
  EXPECT_THAT(text_of(errors[0]), HasSubstr("it is silent"));
  EXPECT_EQ(text_of(errors[1]), "");
}

}  // namespace
}  // namespace gpipe::detail
