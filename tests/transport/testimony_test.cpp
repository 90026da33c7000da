// What a rank tells of its end, as a record, and records that are no testimony.
#include "gpipe/transport/c10d/testimony.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/transport/wire_record.h"
#include "ranks.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Testimony some_testimony() { return {2, true, "activation 0 -> 1", 3, "it is gone\xff"}; }

TEST(Testimony, ComesBackFromItsRecord) {
  const Testimony again = read_testimony(to_record(some_testimony()), 3);
  EXPECT_EQ(again.blamed, 2);
  EXPECT_TRUE(again.silent);
  EXPECT_EQ(again.flow, "activation 0 -> 1");
  EXPECT_EQ(again.micro_batch, 3);
  EXPECT_EQ(again.text, "it is gone\xff");
  EXPECT_EQ(read_testimony(to_record(Testimony()), 1).blamed, -1);
}

TEST(Testimony, OfARecordThatIsNoneIsRefused) {
  const auto expect_refusal = [](const detail::WireRecord& record, const std::string& why) {
    EXPECT_THAT([&] { read_testimony(record, 3); },
                ThrowsMessage<InvalidArgument>(HasSubstr("this is not a testimony: " + why)));
  };
  Testimony testimony = some_testimony();
  testimony.blamed = 3;
  expect_refusal(to_record(testimony), "'blamed' is 3, not a number from -1 to 2");
  testimony.blamed = -2;
  expect_refusal(to_record(testimony), "'blamed' is -2");
  testimony = some_testimony();
  testimony.micro_batch = -2;
  expect_refusal(to_record(testimony), "'micro_batch' is -2");
  detail::WireRecord more = to_record(some_testimony());
  more.add("hint", "none");
  expect_refusal(more, "'hint' does not belong there");
  expect_refusal({}, "'blamed' is missing");
}

TEST(Testimony, ThatCannotBeReadLeavesTheErrorAsItIs) {
  const int port = free_port("127.0.0.1");
  const auto errors = run_each(2, [&](int rank) {
    Peers peers(world_of(rank, 2, port));
    if (rank == 1) return;
    peers.store().set("gpipe/failed/1", {'n', 'o', 'n', 'e'});
    peers.fail(std::make_exception_ptr(PeerError(peers.place_of(1), "it is silent")), /*silent=*/true);
  });
  EXPECT_THAT(text_of(errors[0]), HasSubstr("it is silent"));
  EXPECT_EQ(text_of(errors[1]), "");
}

}  // namespace
}  // namespace gpipe
