#include "gpipe/launch/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

using ::testing::ElementsAre;

TEST(SlurmHosts, ExpandsRangesAndKeepsTheirZeros) {
  EXPECT_THAT(expand_slurm_hosts("alone"), ElementsAre("alone"));
  EXPECT_THAT(expand_slurm_hosts("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(expand_slurm_hosts("node[03-05,7]"), ElementsAre("node03", "node04", "node05", "node7"));
  EXPECT_THAT(expand_slurm_hosts("n[9-11].rack,login"), ElementsAre("n9.rack", "n10.rack", "n11.rack", "login"));
  EXPECT_THAT(expand_slurm_hosts("r[1-2]n[01-02]"), ElementsAre("r1n01", "r1n02", "r2n01", "r2n02"));
  EXPECT_THAT(expand_slurm_hosts("n[099-101]"), ElementsAre("n099", "n100", "n101"));
}

TEST(SlurmHosts, RefusesWhatIsNoList) {
  for (const char* list : {"",
                           ",",
                           "a,",
                           "a,,b",
                           "n[",
                           "n]",
                           "n[1-2",
                           "n[[1]]",
                           "n[]",
                           "n[1,]",
                           "n[2-1]",
                           "n[a-b]",
                           "n[1-]",
                           "n[-1]",
                           "n[1--2]",
                           "n[+1]",
                           "n[1234567890]",
                           "n[0-65536]",
                           "n[0-999999999]",
                           "n[1-300]m[1-300]",
                           "a[1-65536],b"}) {
    EXPECT_THROW(expand_slurm_hosts(list), ParseError) << list;
  }
  EXPECT_EQ(expand_slurm_hosts("n[1-65536]").size(), 65536u);
}

TEST(SlurmTasks, CountsThoseOfANode) {
  EXPECT_EQ(slurm_tasks_of_node("4", 0), 4);
  EXPECT_EQ(slurm_tasks_of_node("4(x2),3", 0), 4);
  EXPECT_EQ(slurm_tasks_of_node("4(x2),3", 1), 4);
  EXPECT_EQ(slurm_tasks_of_node("4(x2),3", 2), 3);
  EXPECT_EQ(slurm_tasks_of_node("1,2(x999999999)", 70000), 2);
}

TEST(SlurmTasks, RefusesWhatIsNoListOrTooShort) {
  for (const char* list : {"", "a", "4(x2", "4(x)", "4(2)", "-4", "4,", "4(x-2)"}) {
    EXPECT_THROW(slurm_tasks_of_node(list, 5), ParseError) << list;
  }
  EXPECT_THROW(slurm_tasks_of_node("4(x2),3", 3), ParseError);
}

}  // namespace
}  // namespace gpipe::detail
