#include "gpipe/os/processors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/error.h"

namespace gpipe {
namespace {

using detail::check_threads;
using detail::most_threads;
using detail::num_processors;

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Processors, AFewTimesAsManyThreadsAsProcessorsAreFine) {
  EXPECT_GE(num_processors(), 1);
  EXPECT_GE(most_threads(), 4 * num_processors());
  EXPECT_NO_THROW(check_threads("threads_per_stage", most_threads()));
}

TEST(Processors, MoreThreadsThanTheMachineCanHaveAreRefusedWithTheNumberItCan) {
  try {
    check_threads("threads_per_stage", most_threads() + 1);
    FAIL() << "was not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("threads_per_stage is " + std::to_string(most_threads() + 1)),
                                    HasSubstr("at most " + std::to_string(most_threads()) + " threads")));
  }
}

}  // namespace
}  // namespace gpipe
