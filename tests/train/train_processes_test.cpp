// gpipe train under gpipe launch: the same weights, files and progress from the first rank only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "run_command.h"
#include "tests/train/image_files.h"

namespace gpipe::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TrainProcesses : public ::testing::Test {
 protected:
  TrainProcesses() {
    write_images(folder_, "train", 64);
    write_images(folder_, "t10k", 20);
  }

  // `name` is that of the files it writes.
  Arguments arguments(const std::string& name, const Arguments& more) const {
    Arguments arguments = {"train",           "image",        "--data-dir", folder_.path(""),  "--model",
                           "resnet-cifar:20", "--batch-size", "16",         "--micro-batches", "4"};
    if (std::find(more.begin(), more.end(), "--steps") == more.end()) {
      arguments.insert(arguments.end(), {"--steps", "4"});
    }
    if (std::find(more.begin(), more.end(), "--stages") == more.end())
      arguments.insert(arguments.end(), {"--stages", "2"});
    for (const char* kind : {"save", "trace", "metrics"}) {
      arguments.push_back(std::string("--") + kind);
      arguments.push_back(folder_.path(name + "." + kind));
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  Outcome launch(const std::string& name, const Arguments& more, const Arguments& how = {"-n", "2"}) const {
    Arguments command = {"launch"};
    command.insert(command.end(), how.begin(), how.end());
    command.insert(command.end(), {"--", GPIPE_COMMAND});
    const Arguments train = arguments(name, more);
    command.insert(command.end(), train.begin(), train.end());
    return run_gpipe(command);
  }

  const TemporaryFolder folder_;
};

TEST_F(TrainProcesses, WriteTheWeightsThatThreadsDo) {
  const Outcome threads = run_gpipe(arguments("threads", {}));
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  const Outcome processes = launch("processes", {});
  ASSERT_EQ(processes.exit_code, 0) << processes.out << processes.err;
  EXPECT_EQ(read_file(folder_.path("processes.save")), read_file(folder_.path("threads.save")));
  EXPECT_THAT(processes.out, HasSubstr("[0] resnet-cifar:20"));
  EXPECT_THAT(processes.out, HasSubstr("[0] "));
  EXPECT_THAT(processes.out, Not(HasSubstr("[1] ")));
  EXPECT_THAT(read_file(folder_.path("processes.trace")), HasSubstr("traceEvents"));
  const std::string metrics = read_file(folder_.path("processes.metrics"));
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 5);  // four steps and an evaluation
}

TEST_F(TrainProcesses, GoOnFromWeightsOfAllStages) {
  ASSERT_EQ(run_gpipe(arguments("first", {})).exit_code, 0);
  const Arguments more = {"--weights", folder_.path("first.save"), "--balance", "30,47"};
  const Outcome threads = run_gpipe(arguments("threads", more));
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  const Outcome processes = launch("processes", more);
  ASSERT_EQ(processes.exit_code, 0) << processes.out << processes.err;
  EXPECT_EQ(read_file(folder_.path("processes.save")), read_file(folder_.path("threads.save")));
}

TEST_F(TrainProcesses, ReplicasHaveTheSameBitsForEveryNumberOfStages) {
  const Outcome one = launch("one", {"--stages", "1"}, {"-n", "2", "--replicas", "2"});
  ASSERT_EQ(one.exit_code, 0) << one.out << one.err;
  const Outcome two = launch("two", {"--stages", "2"}, {"-n", "4", "--replicas", "2"});
  ASSERT_EQ(two.exit_code, 0) << two.out << two.err;
  EXPECT_EQ(read_file(folder_.path("two.save")), read_file(folder_.path("one.save")));
}

TEST_F(TrainProcesses, ReplicasResume) {
  const Arguments replicas = {"-n", "2", "--replicas", "2"};
  const Arguments more = {"--stages", "1", "--checkpoint-dir", folder_.path("checkpoints"), "--resume"};
  const Outcome first = launch("first", more, replicas);
  ASSERT_EQ(first.exit_code, 0) << first.out << first.err;
  EXPECT_THAT(first.out, HasSubstr("from the beginning"));
  Arguments longer = more;
  longer.insert(longer.end(), {"--steps", "6", "--force"});
  const Outcome second = launch("second", longer, replicas);
  ASSERT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_THAT(second.out, HasSubstr("after step 4"));
}

TEST_F(TrainProcesses, AnotherNumberOfThemIsRefusedWithARemedy) {
  Arguments command = {"launch", "-n", "3", "--", GPIPE_COMMAND};
  const Arguments train = arguments("other", {});
  command.insert(command.end(), train.begin(), train.end());
  const Outcome refused = run_gpipe(command);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("[0] gpipe: --stages is 2, but gpipe launch started 3 processes"));
  EXPECT_THAT(refused.err, HasSubstr("gpipe launch -n 2"));
  for (const char* other : {"[1] ", "[2] "}) EXPECT_THAT(refused.err, Not(HasSubstr(other)));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("other.save")));
}

}  // namespace
}  // namespace gpipe::cli
