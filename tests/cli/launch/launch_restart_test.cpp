// gpipe launch --max-restarts: when a job is started again, with how many ranks, and what the ranks find then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "run_command.h"
#include "tests/cli/launch/running_command.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// `script` is run by /bin/sh.
Arguments arguments(Arguments options, const std::string& script) {
  options.insert(options.begin(), "launch");
  options.insert(options.end(), {"--", "/bin/sh", "-c", script});
  return options;
}

Outcome launch(const Arguments& options, const std::string& script) { return run_gpipe(arguments(options, script)); }

TEST(LaunchRestart, StartsAllRanksAgainAtAnotherPlaceUntilTheyEndWell) {
  const Outcome outcome = launch({"-n", "2", "--max-restarts", "3"},
                                 "echo start $GPIPE_RESTART at $GPIPE_MASTER_PORT with $GPIPE_SECRET; "
                                 "if [ $GPIPE_RESTART -lt 2 ]; then [ $GPIPE_RANK = 0 ] || kill -9 $$; sleep 100; fi");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1 (pid "), HasSubstr("was killed by signal 9 (Killed)"),
                                 HasSubstr("restart 1 of 3, with 2 ranks"), HasSubstr("restart 2 of 3, with 2 ranks"),
                                 Not(HasSubstr("restart 3"))));
  std::vector<std::string> places;
  for (const char* start : {"start 0 at ", "start 1 at ", "start 2 at "}) {
    const std::size_t found = outcome.out.find(std::string("[1] ") + start);
    ASSERT_NE(found, std::string::npos) << outcome.out;
    places.push_back(outcome.out.substr(found + 15, outcome.out.find('\n', found) - found - 15));
  }
  // Before that, rank 1 may be gone before rank 0 says anything.
  EXPECT_THAT(outcome.out, HasSubstr("[0] start 2 at " + places.back()));
  EXPECT_NE(places[0], places[1]);
  EXPECT_NE(places[1], places[2]);
}

TEST(LaunchRestart, EndsWithTheLastFailureWhenNoneIsLeft) {
  const Outcome outcome =
      launch({"-n", "2", "--max-restarts", "2"}, "echo try $GPIPE_RESTART; exit $((GPIPE_RESTART + 5))");
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("ended with exit code 5"), HasSubstr("ended with exit code 6"),
                    HasSubstr("restart 2 of 2"), HasSubstr("ended with exit code 7; the others were stopped")));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("try 2"), Not(HasSubstr("try 3"))));
}

TEST(LaunchRestart, DoesNotCureBadUsage) {
  const Outcome outcome = launch({"-n", "2", "--max-restarts", "2"}, "echo start $GPIPE_RESTART; exit 2");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.out, Not(HasSubstr("start 1")));
}

TEST(LaunchRestart, IsNotWantedByWhoEndsTheJob) {
  Arguments command = arguments({"-n", "2", "--max-restarts", "3"}, "echo start $GPIPE_RESTART; sleep 1000");
  command.insert(command.begin(), GPIPE_COMMAND);
  RunningCommand running(command);
  ASSERT_TRUE(running.prints("start 0", 2));
  running.send(SIGTERM);
  const Outcome outcome = running.finish();
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_THAT(outcome.err, Not(HasSubstr("restart")));
}

// What rank 0 of a gpipe program does when all ranks have met.
constexpr const char* kMeet = "[ $GPIPE_RANK != 0 ] || : > $GPIPE_MET_FILE; ";

TEST(LaunchRestart, IsWithoutARankThatCannotComeBack) {
  const std::string script = std::string(
                                 "echo start $GPIPE_RESTART as $GPIPE_RANK/$GPIPE_WORLD_SIZE; "
                                 "[ $GPIPE_RESTART = 0 ] || [ $GPIPE_RANK != 2 ] || exit 1; "  // its place is gone
                                 "[ $GPIPE_RESTART != 1 ] || sleep 100; ") +                   // for rank 2
                             kMeet +
                             "if [ $GPIPE_RESTART = 0 ]; then [ $GPIPE_RANK != 0 ] || kill -9 $$; sleep 100; fi";
  const Outcome outcome = launch({"-n", "3", "--max-restarts", "3"}, script);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("restart 1 of 3, with 3 ranks"), HasSubstr("restart 2 of 3, with 2 ranks")));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("start 2 as 1/2"), Not(HasSubstr("start 2 as 2/"))));

  const Outcome bounded = launch({"-n", "3", "--max-restarts", "2", "--min-ranks", "3"}, script);
  EXPECT_EQ(bounded.exit_code, 1);
  EXPECT_THAT(bounded.err, HasSubstr("restart 2 of 2, with 3 ranks"));
}

TEST(LaunchRestart, IsWithAllRanksIfTheyHaveMetAgainOrNeverTellOfIt) {
  for (const std::string& meet : {std::string(kMeet), std::string()}) {
    const Outcome outcome =
        launch({"-n", "2", "--max-restarts", "3"}, meet +
                                                       "[ $GPIPE_RANK != 0 ] || [ $GPIPE_RESTART -ge 3 ] || exit 1; "
                                                       "[ $GPIPE_RESTART -ge 3 ] || sleep 100");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("restart 3 of 3, with 2 ranks"));
  }
}

TEST(LaunchRestart, OptionsThatDoNotFitAreRefused) {
  const Outcome useless = launch({"-n", "2", "--min-ranks", "1"}, "true");
  EXPECT_EQ(useless.exit_code, 2);
  EXPECT_THAT(useless.err, HasSubstr("add --max-restarts R"));
  const Outcome many = launch({"-n", "2", "--max-restarts", "1", "--min-ranks", "3"}, "true");
  EXPECT_EQ(many.exit_code, 2);
  EXPECT_THAT(many.err, HasSubstr("--min-ranks 3 is more than -n 2"));
  EXPECT_EQ(launch({"-n", "2", "--replicas", "2", "--max-restarts", "1", "--min-ranks", "1"}, "true").exit_code, 2);
}

}  // namespace
}  // namespace gpipe::cli
