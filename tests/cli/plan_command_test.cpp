#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "gpipe/plan/plan_json.h"
#include "run_command.h"

namespace gpipe::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Layers of 1, 2, 3, ... seconds forward, twice that backward, and MiB to match.
std::string make_profile(int num_layers) {
  json profile = {{"layers", json::array()}, {"skips", json::array()}};
  for (int layer = 0; layer < num_layers; ++layer) {
    profile["layers"].push_back({{"name", "layer" + std::to_string(layer)},
                                 {"forward_seconds", layer + 1},
                                 {"backward_seconds", 2 * (layer + 1)},
                                 {"parameter_bytes", 1 << 20},
                                 {"activation_bytes", 4 << 20},
                                 {"output_bytes", 1 << 10}});
  }
  return profile.dump();
}

class PlanCommand : public ::testing::Test {
 protected:
  Outcome run(const Arguments& more) const {
    Arguments arguments = {"plan", "--profile", profile_, "--stages", "2", "--micro-batches", "4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_gpipe(arguments);
  }
  json run_json(Arguments more) const {
    more.emplace_back("--json");
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out);
  }

  TemporaryFolder folder_;
  std::string profile_ = folder_.write("profile.json", make_profile(4));
};

TEST_F(PlanCommand, TakesAsManyMicroBatchesAsANumberCanCount) {
  const Outcome outcome = run_gpipe(
      {"plan", "--profile", profile_, "--stages", "2", "--micro-batches", "2147483647", "--schedule", "auto"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2147483647 micro-batches"));
}

TEST_F(PlanCommand, PrintsATableOfStages) {
  const Outcome outcome = run({});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"1f1b", "2 workers", "4 layers", "layer0  layer2", "layer3  layer3", "####", "makespan",
                           "simulated", "bubble", "memory", "on worker 0"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
}

TEST_F(PlanCommand, PrintsOneJsonObject) {
  const json plan = run_json({});
  EXPECT_EQ(plan["layers_per_stage"], json({3, 1}));  // 18 | 12 seconds
  ASSERT_EQ(plan["stages"].size(), 2u);
  EXPECT_EQ(plan["stages"][0]["layers"], 3);
  EXPECT_EQ(plan["stages"][0]["first"], "layer0");
  EXPECT_EQ(plan["stages"][0]["last"], "layer2");
  EXPECT_EQ(plan["stages"][1]["layers"], 1);
  EXPECT_DOUBLE_EQ(plan["stages"][0]["seconds"], 18);
  EXPECT_GT(plan["stages"][0]["bytes"], plan["stages"][1]["bytes"]);
  EXPECT_DOUBLE_EQ(plan["makespan"], 18 + 12 + 3 * 18);
  EXPECT_DOUBLE_EQ(plan["simulated_makespan"], 78);  // worker 0 is busy for 72 and waits once, for 4 + 8 - 6
  EXPECT_GT(plan["bubble_fraction"], 0);
  EXPECT_EQ(plan["schedule"], "1f1b");
}

TEST_F(PlanCommand, FitsTheTerminalByShorteningNames) {
  json profile = json::parse(make_profile(4));
  for (json& layer : profile["layers"]) layer["name"] = std::string(60, 'x') + layer["name"].get<std::string>();
  folder_.write("profile.json", profile.dump());
  for (const int columns : {80, 120, 200}) {
    const Outcome outcome =
        run_gpipe_on_terminal({"plan", "--profile", profile_, "--stages", "2", "--micro-batches", "4"}, columns);
    EXPECT_THAT(outcome.out, HasSubstr("xlayer3  "));
    EXPECT_LE(longest_line(outcome.out), static_cast<std::size_t>(columns)) << outcome.out;
  }
}

TEST_F(PlanCommand, PlansForASchedule) {
  const json plan = run_json({"--schedule", "zb-v"});
  EXPECT_EQ(plan["schedule"], "zb-v");
  EXPECT_EQ(plan["layers_per_stage"], json({1, 1, 1, 1}));
  EXPECT_EQ(plan["chunks"], 2);
  EXPECT_EQ(run({"--schedule", "zbv"}).exit_code, 2);
  EXPECT_THAT(run({"--schedule", "zbv"}).err, HasSubstr("did you mean zb-v?"));
  EXPECT_THAT(run({"--schedule", "serch"}).err, HasSubstr("did you mean search?"));
}

TEST_F(PlanCommand, RecomputeTradesTimeForBytes) {
  const json kept = run_json({"--schedule", "gpipe"});
  const json recomputed = run_json({"--schedule", "gpipe", "--recompute", "always"});
  EXPECT_GT(recomputed["makespan"], kept["makespan"]);
  EXPECT_LT(recomputed["stages"][0]["bytes"], kept["stages"][0]["bytes"]);
}

TEST_F(PlanCommand, ChoosesWhatIsAutoAndSaysWhatItTried) {
  json profile = json::parse(make_profile(4));
  profile["samples_per_micro_batch"] = 4;
  folder_.write("profile.json", profile.dump());
  const Arguments open = {"plan", "--profile",      profile_, "--stages",    "2",    "--micro-batches",
                          "auto", "--schedule",     "auto",   "--recompute", "auto", "--mini-batch",
                          "16",   "--memory-limit", "40MiB"};
  const auto run_open = [&](const Arguments& more) {
    Arguments arguments = open;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_gpipe(arguments);
  };
  const Outcome table = run_open({"--explain"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* part :
       {"candidates, best first", "step", "fullest worker", "1f1b", "gpipe", "interleaved", "does not fit: lacks"}) {
    EXPECT_THAT(table.out, HasSubstr(part));
  }
  EXPECT_THAT(run_open({}).out, Not(HasSubstr("best first")));
  const json chosen = json::parse(run_open({"--json"}).out);
  EXPECT_GT(chosen["candidates"].size(), 10u);
  EXPECT_EQ(chosen["candidates"][0]["simulated_makespan"], chosen["simulated_makespan"]);
  for (const json& candidate : chosen["candidates"]) {
    if (candidate.contains("missing_bytes")) continue;
    EXPECT_GE(candidate["simulated_makespan"].get<double>(), chosen["simulated_makespan"].get<double>() * (1 - 1e-9));
    EXPECT_LE(candidate["fullest_bytes"], 40 << 20);
  }
}

TEST_F(PlanCommand, WithoutTheMiniBatchItCannotChooseItsSlices) {
  const Outcome outcome = run_gpipe({"plan", "--profile", profile_, "--stages", "2", "--micro-batches", "auto"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--mini-batch"));
  EXPECT_THAT(run({"--mini-batch", "8"}).err, HasSubstr("samples_per_micro_batch"));  // the profile does not say
}

TEST_F(PlanCommand, RecomputesPerStageWhereTheMemoryIsShort) {
  const Arguments arguments = {"--recompute", "auto", "--memory-limit", "20MiB", "--no-rematerialize"};
  const json plan = run_json(arguments);
  EXPECT_EQ(plan["recompute"], "auto");
  EXPECT_EQ(plan["stages"][0]["recompute"], "always");
  EXPECT_EQ(plan["stages"][1]["recompute"], "never");
  EXPECT_FALSE(plan["stages"][0].contains("rematerialization"));
  EXPECT_THAT(run(arguments).out, HasSubstr("recompute per stage"));
}

TEST_F(PlanCommand, DropsSomeLayersOfAStageWhereThatIsFaster) {
  const Arguments arguments = {"--recompute", "auto", "--memory-limit", "32MiB"};
  const json plan = run_json(arguments);
  EXPECT_EQ(plan["stages"][0]["recompute"], "never");
  EXPECT_EQ(plan["stages"][0]["rematerialization"], "0-0");
  EXPECT_EQ(plan["stages"][1]["rematerialization"], "");
  EXPECT_EQ(plan["candidates"][0]["recompute"], "per layer");
  EXPECT_LT(plan["simulated_makespan"],
            run_json({"--recompute", "auto", "--memory-limit", "32MiB", "--no-rematerialize"})["simulated_makespan"]);
  EXPECT_THAT(run(arguments).out, AllOf(HasSubstr("recompute per layer"), HasSubstr("dropped layers")));
}

TEST_F(PlanCommand, WritesThePlanAndOverwritesNothing) {
  const std::string out = folder_.path("plan.json");
  EXPECT_EQ(run({"--out", out}).exit_code, 0);
  const Plan plan = parse_plan(read_file(out));
  EXPECT_EQ(plan.layers_per_stage, (std::vector<int>{3, 1}));
  EXPECT_EQ(plan.num_workers(), 2);
  EXPECT_EQ(plan.predicted_step_seconds, 78);
  const Outcome again = run({"--out", out, "--recompute", "always"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("--force"));
  EXPECT_EQ(parse_plan(read_file(out)).recompute, Recompute::kNever);
  EXPECT_EQ(run({"--out", out, "--recompute", "always", "--force"}).exit_code, 0);
  EXPECT_EQ(parse_plan(read_file(out)).recompute, Recompute::kAlways);
}

TEST_F(PlanCommand, GivesASlowWorkerLess) {
  EXPECT_EQ(run_json({"--worker-speed", "0.1,1"})["layers_per_stage"], json({1, 3}));
  EXPECT_EQ(run({"--worker-speed", "1,1,1"}).exit_code, 2);
  EXPECT_THAT(run({"--worker-speed", "1,0"}).err, HasSubstr("--worker-speed: '0' is not a number above 0"));
}

TEST_F(PlanCommand, TakesWorkersThatDifferFromAFile) {
  const std::string slow = folder_.write("slow.json", R"({"workers": [{"speed": 0.1}, {}]})");
  EXPECT_EQ(run_json({"--workers", slow})["layers_per_stage"], json({1, 3}));
  // A layer has 4 MiB of weights and 4 of activations: the second worker has no room for a second one.
  const std::string small =
      folder_.write("small.json", R"({"workers": [{"speed": 0.1, "memory": "1GiB"}, {"memory": "12MiB"}]})");
  EXPECT_EQ(run_json({"--workers", small})["layers_per_stage"], json({3, 1}));
  const std::string link =
      folder_.write("link.json", R"({"workers": [{"link": {"latency": 1000, "bandwidth": "1GB"}}, {}]})");
  EXPECT_GT(run_json({"--workers", link})["simulated_makespan"], 2000);
  const std::string plan = folder_.path("plan.json");
  ASSERT_EQ(run({"--workers", small, "--out", plan}).exit_code, 0);
  EXPECT_EQ(parse_plan(folder_.read("plan.json")).costs.workers[1].memory_limit_bytes, 12 << 20);
}

TEST_F(PlanCommand, NamesTheWorkerWhoseMemoryIsShort) {
  const std::string small = folder_.write("small.json", R"({"workers": [{}, {"memory": "1MiB"}]})");
  const Outcome outcome = run({"--workers", small});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("on stage 1, whose limit is 1 MiB"), HasSubstr("is on worker 1"),
                                 HasSubstr("try more memory for its worker, smaller micro-batches")));
}

TEST_F(PlanCommand, RefusesWorkersThatAreNone) {
  const auto refusal = [&](const std::string& text) {
    const Outcome outcome = run({"--workers", folder_.write("workers.json", text)});
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refusal("{}"), AllOf(HasSubstr("workers.json': line 1, column 2: \"workers\" is missing"),
                                   HasSubstr("a file of workers is JSON such as")));
  EXPECT_THAT(refusal(R"({"workers": [{"speed": -1}, {}]})"), HasSubstr("worker 0: \"speed\" is -1"));
  EXPECT_THAT(refusal(R"({"workers": [{}, {}, {}]})"), HasSubstr("has 3 workers, and the pipeline has 2"));
  EXPECT_THAT(run({"--workers", "none.json"}).err, HasSubstr("cannot read 'none.json'"));
  const std::string two = folder_.write("two.json", R"({"workers": [{}, {}]})");
  EXPECT_THAT(run({"--workers", two, "--worker-speed", "1,1"}).err, HasSubstr("leave --worker-speed out"));
  EXPECT_THAT(run_gpipe({"plan", "--profile", "-", "--workers", "-", "--stages", "2", "--micro-batches", "4"}).err,
              HasSubstr("both read standard input"));
}

TEST_F(PlanCommand, TakesAnObjective) {
  EXPECT_EQ(run_json({"--objective", "slowest-stage"})["layers_per_stage"], json({3, 1}));
  EXPECT_THAT(run({"--objective", "makespam"}).err, HasSubstr("did you mean 'makespan'?"));
}

TEST_F(PlanCommand, OptimizerStateCountsAsMemory) {
  EXPECT_GT(run_json({"--optimizer-slots", "2"})["stages"][0]["bytes"],
            run_json({"--optimizer-slots", "0"})["stages"][0]["bytes"]);
}

TEST_F(PlanCommand, SaysHowMuchMemoryIsMissingAndHowManyStagesWouldDo) {
  EXPECT_EQ(run({"--memory-limit", "1GiB"}).exit_code, 0);
  const Outcome outcome = run({"--memory-limit", "17MiB"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, StartsWith("gpipe: "));
  EXPECT_THAT(outcome.err, HasSubstr("MiB"));
  EXPECT_THAT(outcome.err, HasSubstr("--stages"));
  const Outcome hopeless = run({"--memory-limit", "1B"});
  EXPECT_EQ(hopeless.exit_code, 1);
  EXPECT_THAT(hopeless.err, HasSubstr("no number of stages"));
  EXPECT_THAT(hopeless.err, Not(HasSubstr("--stages")));
  EXPECT_THAT(hopeless.err, HasSubstr("try a larger --memory-limit, smaller micro-batches or --recompute auto\n"));
  EXPECT_THAT(run({"--memory-limit", "1B", "--recompute", "auto"}).err,
              HasSubstr("try a larger --memory-limit or smaller micro-batches\n"));
}

TEST_F(PlanCommand, ReadsTheProfileFromStandardInput) {
  const Outcome outcome =
      run_gpipe({"plan", "--profile", "-", "--stages", "2", "--micro-batches", "4"}, make_profile(4));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, run({}).out);
}

TEST_F(PlanCommand, RefusesProfilesThatAreNone) {
  for (const char* content : {"", "{", "[]", "{\"layers\": []}", "{\"layers\": 3}",
                              "\x7f"
                              "ELF"}) {
    const std::string file = folder_.write("bad.json", content);
    const Outcome outcome = run_gpipe({"plan", "--profile", file, "--stages", "2", "--micro-batches", "4"});
    EXPECT_EQ(outcome.exit_code, 2) << content;
    EXPECT_THAT(outcome.err, HasSubstr(file)) << content;
  }
}

TEST_F(PlanCommand, RefusesMoreStagesThanLayers) {
  const Outcome outcome = run_gpipe({"plan", "--profile", profile_, "--stages", "5", "--micro-batches", "4"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("5"));
}

TEST_F(PlanCommand, SaysWhatIsMissing) {
  EXPECT_THAT(run_gpipe({"plan"}).err, HasSubstr("--profile is missing"));
  EXPECT_THAT(run_gpipe({"plan", "--profile", profile_}).err, HasSubstr("--stages is missing"));
  EXPECT_THAT(run({"--memory-limit", "-2GiB"}).err, HasSubstr("--memory-limit: '-2GiB' is below 0"));
}

TEST_F(PlanCommand, MakesControlCharactersInLayerNamesVisible) {
  json profile = json::parse(make_profile(4));
  profile["layers"][0]["name"] = "\x1b[31mred";
  folder_.write("profile.json", profile.dump());
  EXPECT_THAT(run({}).out, HasSubstr("\\x1b[31mred"));
}

}  // namespace
}  // namespace gpipe::cli
