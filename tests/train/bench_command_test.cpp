#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_command.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Arguments quick_bench(const Arguments& more) {
  Arguments arguments = {"bench", "--quick", "--repeats", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

const nlohmann::json* row_of(const nlohmann::json& run, const std::string& name) {
  for (const nlohmann::json& row : run.at("rows")) {
    if (row.at("name") == name) return &row;
  }
  return nullptr;
}

TEST(BenchCommand, WritesWhatItMeasuredWithTheLossOfThePlainLoopInEveryRow) {
  const TemporaryFolder folder;
  const Outcome outcome = run_gpipe(quick_bench({"--workload", "all", "--rows", "data-parallel,threads", "--stages",
                                                 "1,2", "--schedules", "1f1b,zb-v", "--recompute", "never,always",
                                                 "--json", folder.path("b.json"), "--markdown", folder.path("b.md")}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(folder.path("b.json")));
  ASSERT_EQ(json.at("runs").size(), 6U);
  for (const nlohmann::json& run : json.at("runs")) {
    EXPECT_EQ(run.at("micro_batches"), 8);
    EXPECT_TRUE(run.at("verdict").is_string());
    const double loss = run.at("rows").at(0).at("loss");
    for (const char* name : {"1f1b, K=1", "1f1b, K=2", "zb-v, K=2", "1f1b, K=2, always"}) {
      const nlohmann::json* row = row_of(run, name);
      ASSERT_NE(row, nullptr) << run.at("workload") << " has no " << name;
      if (row->contains("not_run")) continue;  // zb-v has more stages than a model of few layers
      EXPECT_EQ(row->at("loss"), loss) << run.at("workload") << ' ' << name;
      EXPECT_EQ(row->at("same_loss"), true);
      EXPECT_GT(row->at("peak_bytes"), 0);
      EXPECT_GT(row->at("predicted_peak_bytes"), 0);
      EXPECT_GT(row->at("seconds").at("median"), 0);
      EXPECT_GT(row->at("speed_up").at("median"), 0);
    }
    EXPECT_NE(row_of(run, "data parallel x2"), nullptr);
  }
  EXPECT_THAT(read_file(folder.path("b.md")), AllOf(HasSubstr("## transformer, M=8"), HasSubstr("| 1f1b, K=2 |")));
}

TEST(BenchCommand, RunsAPipelineOverProcessesInTurns) {
  const TemporaryFolder folder;
  const Outcome outcome = run_gpipe(quick_bench(
      {"--workload", "tiny", "--rows", "processes", "--schedules", "1f1b", "--json", folder.path("b.json")}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(folder.path("b.json")));
  const nlohmann::json* row = row_of(json.at("runs").at(0), "1f1b, K=2, processes");
  ASSERT_NE(row, nullptr);
  ASSERT_FALSE(row->contains("not_run")) << row->at("not_run");
  EXPECT_EQ(row->at("same_loss"), true);
  EXPECT_GT(row->at("peak_bytes"), 0);
}

TEST(BenchCommand, SaysHowToInstallAPeerThatIsNotThere) {
  const TemporaryFolder folder;
  // As a Python that has no torch answers.
  const std::string python = folder.write("python", "#!/bin/sh\necho '{\"missing\": \"torch\"}' > \"$2/answer.0\"\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  const Outcome outcome = run_gpipe(quick_bench({"--workload", "tiny", "--rows", "peers", "--python", python}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("Pipe of python3-torch: not installed"), HasSubstr("apt-get install")));
}

TEST(BenchCommand, HasARowThatSaysWhyAPeerDoesNotRun) {
  const Outcome missing = run_gpipe(quick_bench({"--workload", "tiny", "--rows", "peers", "--python", "/none"}));
  EXPECT_EQ(missing.exit_code, 0) << missing.err;
  EXPECT_THAT(missing.out, HasSubstr("Pipe of python3-torch: it cannot be started"));
  const Outcome unwritten = run_gpipe(quick_bench({"--workload", "unet", "--rows", "peers"}));
  EXPECT_EQ(unwritten.exit_code, 0) << unwritten.err;
  EXPECT_THAT(unwritten.out, HasSubstr("Pipe of python3-torch: this model is not written for it"));
}

TEST(BenchCommand, HasARowThatSaysWhyAPipelineDoesNotRun) {
  const Outcome outcome = run_gpipe(quick_bench({"--workload", "lstm", "--rows", "threads", "--stages", "8"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1f1b, K=8: "));
}

TEST(BenchCommand, EmulatesMoreProcessorsThanThereAre) {
  const TemporaryFolder folder;
  const Outcome outcome =
      run_gpipe(quick_bench({"--emulate", "--stages", "2,4", "--micro-batches", "1,4", "--recompute", "never", "--json",
                             folder.path("e.json"), "--markdown", folder.path("e.md")}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("EMULATION"), HasSubstr("Table 2, emulated"), HasSubstr("Table 4")));
  const auto json = nlohmann::json::parse(read_file(folder.path("e.json")));
  ASSERT_EQ(json.at("emulations").size(), 2U);
  for (const nlohmann::json& emulation : json.at("emulations")) {
    ASSERT_EQ(emulation.at("steps").size(), 4U);
    for (const nlohmann::json& step : emulation.at("steps")) {
      // No K workers do the work faster than K times, and a slower interconnect makes nothing faster.
      const double fast = step.at("emulated_fast").at("seconds");
      EXPECT_GE(fast * step.at("stages").get<double>(), step.at("alone_seconds").get<double>() * 0.999);
      EXPECT_GE(step.at("emulated_slow").at("seconds").get<double>(), fast);
      EXPECT_EQ(step.at("emulated_fast").at("recompute"), 0);
      EXPECT_TRUE(step.contains("paper"));
    }
  }
  EXPECT_THAT(read_file(folder.path("e.md")), HasSubstr("Table 3, emulated"));
}

TEST(BenchCommand, OffersOnlySchedulesThatTrain) {
  for (const char* const name : {"forward", "wrong"}) {
    const Outcome outcome = run_gpipe({"bench", "--quick", "--schedules", name});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("--schedules: '" + std::string(name) + "' is not one of gpipe, 1f1b, "),
                                   HasSubstr("dualpipe-v, search"), Not(HasSubstr(", forward"))));
  }
}

TEST(BenchCommand, RefusesToEmulateWhatItCannot) {
  const std::vector<std::pair<Arguments, const char*>> cases = {
      {{"--workload", "lstm"}, "lstm is not emulated"},
      {{"--schedules", "zb-v"}, "zb-v is not emulated"},
      {{"--schedules", "gpipe,1f1b"}, "--schedules: an emulation has one"},
      {{"--rows", "plain"}, "--rows mean nothing with --emulate"},
      {{"--micro-batches", "128"}, "the batch of transformer has 32 samples"}};
  for (const auto& [options, message] : cases) {
    Arguments arguments = quick_bench({"--emulate"});
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST(BenchCommand, RefusesWhatItCannotMeasure) {
  const Outcome many = run_gpipe(quick_bench({"--workload", "transformer", "--micro-batches", "1,17"}));
  EXPECT_EQ(many.exit_code, 2);
  EXPECT_THAT(many.err, HasSubstr("--micro-batches 17: the batch of transformer has 16 samples"));
  const Outcome unknown = run_gpipe(quick_bench({"--workload", "transfromer"}));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("--workload"), HasSubstr("transformer")));
  const Outcome chosen = run_gpipe(quick_bench({"--recompute", "auto"}));
  EXPECT_EQ(chosen.exit_code, 2);
  EXPECT_THAT(chosen.err, HasSubstr("'auto' is not measured"));
}

TEST(BenchCommand, OverwritesNothingUnlessItIsTold) {
  const TemporaryFolder folder;
  const std::string there = folder.write("there", "mine");
  for (const char* option : {"--json", "--markdown"}) {
    const Outcome outcome = run_gpipe(quick_bench({"--workload", "tiny", option, there}));
    EXPECT_EQ(outcome.exit_code, 2) << option;
    EXPECT_THAT(outcome.err, HasSubstr("--force")) << option;
  }
  const Outcome twice =
      run_gpipe(quick_bench({"--workload", "tiny", "--json", folder.path("a"), "--markdown", folder.path("a")}));
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err, HasSubstr("the same file"));
  EXPECT_EQ(read_file(there), "mine");
}

}  // namespace
}  // namespace gpipe::cli
