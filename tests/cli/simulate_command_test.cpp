#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "gpipe/schedule/registry.h"
#include "run_command.h"

namespace gpipe::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Four layers that cost what a worker costs by default.
std::string make_profile(std::optional<int> deferred_bytes = std::nullopt) {
  json profile = {{"layers", json::array()}};
  for (const char* name : {"a", "b", "c", "d"}) {
    profile["layers"].push_back({{"name", name},
                                 {"forward_seconds", 1},
                                 {"backward_seconds", 2},
                                 {"parameter_bytes", 8},
                                 {"activation_bytes", 16},
                                 {"output_bytes", 4}});
    if (deferred_bytes) profile["layers"].back()["deferred_bytes"] = *deferred_bytes;
  }
  return profile.dump();
}

Arguments simulate(const std::string& name, const Arguments& more = {}) {
  Arguments arguments = {"simulate", name, "--stages", "4", "--micro-batches", "8"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

json simulate_json(const std::string& name, Arguments more = {}) {
  more.emplace_back("--json");
  const Outcome outcome = run_gpipe(simulate(name, more));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return json::parse(outcome.out);
}

TEST(SimulateCommand, PrintsWhereTheTimeWent) {
  const Outcome outcome = run_gpipe(simulate("1f1b"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  // (M + K - 1) (F + B) = 33; the bubble is (K - 1) / (M + K - 1).
  for (const char* part :
       {"makespan 33 s", "27.3", "critical path", "peak activations", "useful", "recompute", "weight update",
        "idle: load imbalance", "idle: schedule", "idle: communication", "workers x makespan"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(outcome.out, Not(HasSubstr("peak bytes")));
}

TEST(SimulateCommand, PrintsOneJsonObject) {
  const json result = simulate_json("1f1b");
  EXPECT_EQ(result["schedule"], "1f1b");
  EXPECT_EQ(result["num_stages"], 4);
  EXPECT_EQ(result["num_workers"], 4);
  EXPECT_EQ(result["num_micro_batches"], 8);
  EXPECT_DOUBLE_EQ(result["makespan"], 33);
  EXPECT_DOUBLE_EQ(result["bubble_fraction"], 3.0 / 11);
  ASSERT_EQ(result["workers"].size(), 4u);
  for (int worker = 0; worker < 4; ++worker) {
    EXPECT_EQ(result["workers"][worker]["worker"], worker);
    EXPECT_DOUBLE_EQ(result["workers"][worker]["busy"], 24);
    EXPECT_DOUBLE_EQ(result["workers"][worker]["idle"], 9);
    EXPECT_DOUBLE_EQ(result["workers"][worker]["peak_activations"], 4 - worker);
    EXPECT_EQ(result["workers"][worker]["peak_bytes"], nullptr);
  }
  EXPECT_EQ(result["critical_path"].front(), "0F0");
  EXPECT_EQ(result["critical_path"].back(), "0B7");
}

TEST(SimulateCommand, TheBreakdownAddsUpForEveryName) {
  for (const ScheduleInfo& info : schedule_registry()) {
    const json result =
        simulate_json(info.name, {"--recompute", "always", "--link-latency", "0.1", "--update-seconds", "1"});
    double sum = 0;
    for (const char* part : {"useful", "recompute", "weight_update", "load_imbalance", "bubble", "communication"}) {
      sum += result["breakdown"][part].get<double>();
    }
    EXPECT_NEAR(sum, 4 * result["makespan"].get<double>(), 1e-9) << info.name;
    double idle = 0;
    for (const json& worker : result["workers"]) idle += worker["idle"].get<double>();
    EXPECT_NEAR(result["bubble_fraction"].get<double>(), idle / sum, 1e-12) << info.name;
  }
}

TEST(SimulateCommand, ABackwardIsItsTwoParts) {
  const auto busy = [](const std::string& name, const Arguments& costs) {
    return simulate_json(name, costs)["workers"][0]["busy"].get<double>() / 8;
  };
  EXPECT_DOUBLE_EQ(busy("1f1b", {"--backward", "3"}), 4);
  EXPECT_DOUBLE_EQ(busy("zb-h1", {"--backward", "3"}), 4);                          // I = W = 1.5
  EXPECT_DOUBLE_EQ(busy("zb-h1", {"--backward", "3", "--input-grad", "0.5"}), 4);   // W = 2.5
  EXPECT_DOUBLE_EQ(busy("zb-h1", {"--backward", "3", "--weight-grad", "0.5"}), 4);  // I = 2.5
  EXPECT_DOUBLE_EQ(busy("1f1b", {"--input-grad", "3"}), 5);                         // B = 3 + 1
  EXPECT_DOUBLE_EQ(busy("1f1b", {"--input-grad", "3", "--weight-grad", "2"}), 6);   // B = 3 + 2
  EXPECT_DOUBLE_EQ(busy("1f1b", {"--backward", "9", "--input-grad", "3", "--weight-grad", "2"}), 10);
  EXPECT_DOUBLE_EQ(busy("zb-h1", {"--backward", "9", "--input-grad", "3", "--weight-grad", "2"}), 6);
  const Outcome refused = run_gpipe(simulate("1f1b", {"--backward", "2", "--input-grad", "3"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--input-grad 3 is more than --backward 2"));
}

TEST(SimulateCommand, RecomputeCostsAForwardUnlessToldOtherwise) {
  const Arguments always = {"--recompute", "always", "--forward", "3"};
  EXPECT_DOUBLE_EQ(simulate_json("gpipe", always)["breakdown"]["recompute"], 4 * 8 * 3);
  Arguments cheap = always;
  cheap.insert(cheap.end(), {"--recompute-cost", "0"});
  EXPECT_DOUBLE_EQ(simulate_json("gpipe", cheap)["breakdown"]["recompute"], 0);
}

TEST(SimulateCommand, MessagesTakeLatencyAndBandwidth) {
  EXPECT_DOUBLE_EQ(simulate_json("forward", {"--link-latency", "0.5"})["makespan"], 11 + 3 * 0.5);
  EXPECT_DOUBLE_EQ(simulate_json("forward", {"--output-bytes", "1KiB", "--link-bandwidth", "4KiB/s"})["makespan"],
                   11 + 3 * 0.25);
  EXPECT_THAT(run_gpipe(simulate("forward", {"--link-bandwidth", "0"})).err,
              HasSubstr("--link-bandwidth: '0' is not above 0"));
}

TEST(SimulateCommand, TakesWorkersThatDifferFromAFile) {
  const TemporaryFolder folder;
  const std::string workers = folder.write(
      "workers.json", R"({"workers": [{}, {"speed": 0.5, "link": {"latency": 7}}, {"link": {"latency": 5}}, {}]})");
  const json result = simulate_json("forward", {"--workers", workers});
  EXPECT_DOUBLE_EQ(result["workers"][1]["busy"], 16);
  EXPECT_DOUBLE_EQ(result["makespan"], 1 + 16 + 7 + 1 + 5 + 1);
  // Messages take a second on each link.
  const Arguments sizes = {"--workers", workers, "--link-bandwidth", "1", "--output-bytes", "1"};
  EXPECT_DOUBLE_EQ(simulate_json("forward", sizes)["makespan"], (1 + 1) + (16 + 1 + 7) + (1 + 1 + 5) + 1);
  // The slow worker gets one of five layers.
  json profile = json::parse(make_profile());
  profile["layers"].push_back(profile["layers"][0]);
  const std::string layers = folder.write("profile.json", profile.dump());
  EXPECT_DOUBLE_EQ(simulate_json("1f1b", {"--workers", workers, "--profile", layers})["workers"][1]["busy"], 8 * 6);
  const std::string small = folder.write("small.json", R"({"workers": [{}, {}, {"memory": 1}, {}]})");
  const Outcome outcome = run_gpipe(simulate("1f1b", {"--workers", small, "--profile", layers}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("on stage 2, whose limit is 1 bytes"));
  EXPECT_THAT(outcome.err, HasSubstr("or --recompute always"));
  EXPECT_THAT(run_gpipe({"simulate", "1f1b", "--stages", "2", "--micro-batches", "2", "--workers", small}).err,
              HasSubstr("has 4 workers, and the pipeline has 2"));
}

TEST(SimulateCommand, CapacitiesMakeSendersWait) {
  const double unbounded = simulate_json("1f1b")["makespan"];
  EXPECT_DOUBLE_EQ(simulate_json("1f1b", {"--capacity", "free"})["makespan"], unbounded);
  EXPECT_GE(simulate_json("1f1b", {"--capacity", "live"})["makespan"], unbounded);
  EXPECT_DOUBLE_EQ(simulate_json("1f1b", {"--capacity", "1000"})["makespan"], unbounded);
  for (const char* word : {"lve", "0", "-1", "many"}) {
    const Outcome outcome = run_gpipe(simulate("1f1b", {"--capacity", word}));
    EXPECT_EQ(outcome.exit_code, 2) << word;
    EXPECT_THAT(outcome.err, StartsWith("gpipe: --capacity: ")) << word;
  }
}

TEST(SimulateCommand, CarriesMessagesByOneEngineAWorker) {
  const double on_their_own = simulate_json("zb-h1", {"--link-latency", "0.2"})["makespan"];
  const double by_engines = simulate_json("zb-h1", {"--link-latency", "0.2", "--one-engine"})["makespan"];
  EXPECT_GT(by_engines, on_their_own);
  EXPECT_LT(by_engines, 1.05 * on_their_own);
  const Outcome refused = run_gpipe(simulate("1f1b", {"--one-engine", "--capacity", "live"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, StartsWith("gpipe: with --one-engine no flow has a capacity"));
}

TEST(SimulateCommand, RunsAScheduleFromAFile) {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "s.csv", run_gpipe({"schedule", "1f1b", "--stages", "4", "--micro-batches", "8", "--format", "csv"}).out);
  const Outcome outcome = run_gpipe({"simulate", "--file", file, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["schedule"], file);
  EXPECT_DOUBLE_EQ(result["makespan"], 33);
  EXPECT_EQ(run_gpipe({"simulate", "--file", file, "--stages", "4", "--micro-batches", "8"}).exit_code, 0);
  const json recomputed = json::parse(run_gpipe({"simulate", "--file", file, "--json", "--recompute", "always"}).out);
  EXPECT_GT(recomputed["breakdown"]["recompute"], 0);
}

TEST(SimulateCommand, SizesMustAgreeWithTheFile) {
  const TemporaryFolder folder;
  const std::string file = folder.write("s.txt", "F0 F1 B0 B1\nF0 B0 F1 B1\n");
  for (const Arguments& size :
       {Arguments{"--stages", "3"}, Arguments{"--micro-batches", "3"}, Arguments{"--chunks", "3"}}) {
    const Outcome outcome = run_gpipe({"simulate", "--file", file, size[0], size[1]});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(size[0] + " 3 does not agree with '" + file + "', which has "));
  }
}

TEST(SimulateCommand, RefusesAScheduleFromAFileThatCannotRun) {
  const TemporaryFolder folder;
  const Outcome outcome =
      run_gpipe({"simulate", "--file", folder.write("s.txt", "0F0 3F0 0B0 3B0\n2F0 1F0 2B0 1B0\n")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("deadlock"));
}

TEST(SimulateCommand, NeedsEitherANameOrAFile) {
  EXPECT_THAT(run_gpipe({"simulate"}).err, HasSubstr("Neither NAME nor --file"));
  EXPECT_THAT(run_gpipe({"simulate", "1f1b", "--file", "x"}).err, HasSubstr("both a NAME, '1f1b', and --file"));
  EXPECT_THAT(run_gpipe({"simulate", "1f1b"}).err, HasSubstr("--stages is missing"));
  EXPECT_EQ(run_gpipe({"simulate", "1f1b"}).exit_code, 2);
}

TEST(SimulateCommand, SplitsAProfileIntoTheStagesOfTheSchedule) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("p.json", make_profile());
  const Arguments base = {"simulate", "1f1b", "--stages", "2", "--micro-batches", "4", "--json", "--profile", profile};
  const auto with = [&base](const Arguments& more) {
    Arguments all = base;
    all.insert(all.end(), more.begin(), more.end());
    return run_gpipe(all);
  };
  const json even = json::parse(with({}).out);
  EXPECT_DOUBLE_EQ(even["makespan"], 5 * 6);
  EXPECT_GT(even["workers"][0]["peak_bytes"], 0);
  const json uneven = json::parse(with({"--balance", "3,1"}).out);
  EXPECT_GT(uneven["makespan"], even["makespan"]);
  EXPECT_GT(uneven["breakdown"]["load_imbalance"], 0);
  EXPECT_EQ(with({"--balance", "3,3"}).exit_code, 2);
  EXPECT_EQ(with({"--balance", "4"}).exit_code, 2);
  EXPECT_THAT(with({"--balance", "3,x"}).err, HasSubstr("--balance: 'x' is not a whole number"));
  EXPECT_THAT(with({"--forward", "2"}).err, HasSubstr("--profile already says"));
  EXPECT_THAT(run_gpipe(simulate("1f1b", {"--balance", "1,1"})).err, HasSubstr("add --profile"));
}

TEST(SimulateCommand, TooFewLayersForAScheduleHaveARemedyThatItTakes) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("p.json", make_profile());
  const Outcome outcome = run_gpipe(simulate("zb-v", {"--profile", profile}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("zb-v has 8 stages on 4 workers, and the profile has 4 layers for them"));
  EXPECT_THAT(outcome.err, HasSubstr("take zb-h1, which puts one stage on each, fewer --stages"));
  EXPECT_EQ(run_gpipe(simulate("zb-h1", {"--profile", profile})).exit_code, 0);
  const Arguments one_worker_more = {"simulate", "1f1b", "--stages", "5", "--micro-batches", "8", "--profile", profile};
  EXPECT_THAT(run_gpipe(one_worker_more).err, HasSubstr("ask for at most 4 stages, or split layers"));
}

TEST(SimulateCommand, CountsWhatASplitBackwardHoldsUntilItsWeightGradient) {
  const TemporaryFolder folder;
  const auto peak_bytes = [&](const char* schedule, std::optional<int> deferred_bytes) -> int {
    const std::string profile = folder.write("p.json", make_profile(deferred_bytes));
    return simulate_json(schedule, {"--profile", profile})["workers"][1]["peak_bytes"];
  };
  EXPECT_EQ(peak_bytes("1f1b", 20), peak_bytes("1f1b", std::nullopt));
  EXPECT_EQ(peak_bytes("zb-h1", 16), peak_bytes("zb-h1", std::nullopt));
  EXPECT_LE(peak_bytes("zb-h1", 8), peak_bytes("zb-h1", 16));
  EXPECT_GT(peak_bytes("zb-h1", 64), peak_bytes("zb-h1", 16));
}

TEST(SimulateCommand, SplitsAProfileIntoTheStagesOfAFile) {
  const TemporaryFolder folder;
  const std::string profile = folder.write("p.json", make_profile());
  const std::string file =
      folder.write("s.txt", run_gpipe({"schedule", "zb-v", "--stages", "2", "--micro-batches", "4"}).out);
  const Outcome outcome = run_gpipe({"simulate", "--file", file, "--profile", profile, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_DOUBLE_EQ(json::parse(outcome.out)["breakdown"]["useful"], 4 * 12);
}

TEST(SimulateCommand, WritesATraceAndAPictureButNeverOverThemUnasked) {
  const TemporaryFolder folder;
  const std::string trace = folder.path("t.json");
  const std::string svg = folder.path("s.svg");
  EXPECT_EQ(run_gpipe(simulate("1f1b", {"--trace", trace, "--svg", svg})).exit_code, 0);
  EXPECT_TRUE(json::accept(read_file(trace)));
  EXPECT_THAT(read_file(svg), HasSubstr("</svg>"));
  for (const Arguments& output : {Arguments{"--trace", trace}, Arguments{"--svg", svg}}) {
    const Outcome outcome = run_gpipe(simulate("1f1b", output));
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "") << "refused before any work";
    EXPECT_THAT(outcome.err, HasSubstr("'" + output[1] + "' already exists"));
    EXPECT_THAT(outcome.err, HasSubstr("--force"));
    EXPECT_EQ(run_gpipe(simulate("1f1b", {output[0], output[1], "--force"})).exit_code, 0);
  }
  EXPECT_THAT(run_gpipe(simulate("1f1b", {"--trace", svg, "--svg", svg, "--force"})).err, HasSubstr("both name"));
}

TEST(SimulateCommand, LeavesTheGanttOutWhereItWouldNotBeLegible) {
  const Outcome outcome = run_gpipe({"simulate", "1f1b", "--stages", "2", "--micro-batches", "400"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("no gantt: the actions do not fit into 100 columns"));
  EXPECT_THAT(outcome.out, HasSubstr("2 workers, 2 stages, 400 micro-batches"));
  EXPECT_THAT(outcome.out, HasSubstr("makespan 1203 s"));
}

TEST(SimulateCommand, DrawsTheGanttAsWideAsAskedFor) {
  const Arguments many = {"simulate", "1f1b", "--stages", "2", "--micro-batches", "400", "--width"};
  Arguments wide = many;
  wide.emplace_back("2000");
  EXPECT_THAT(run_gpipe(wide).out, HasSubstr("\n0 |F"));
  Arguments narrow = many;
  narrow.emplace_back("60");
  EXPECT_THAT(run_gpipe(narrow).out, HasSubstr("do not fit into 60 columns; try --width N or --svg FILE"));
}

// All of the idle time is the bubble: what it consists of has other names.
TEST(SimulateCommand, CallsOneNumberBubble) {
  const Outcome outcome = run_gpipe(simulate("1f1b", {"--link-latency", "1"}));
  const std::size_t first = outcome.out.find("bubble");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(outcome.out.find("bubble", first + 1), std::string::npos) << outcome.out;
  const json result = simulate_json("1f1b", {"--link-latency", "1"});
  const auto percent = std::to_string(100 * result["bubble_fraction"].get<double>());
  EXPECT_THAT(outcome.out, HasSubstr("bubble " + percent.substr(0, percent.find('.'))));
}

TEST(SimulateCommand, RefusesCostsThatAreNone) {
  for (const char* cost : {"-1", "nan", "inf", "fast"}) {
    const Outcome outcome = run_gpipe(simulate("1f1b", {"--forward", cost}));
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("--forward: '" + std::string(cost) + "' is not a number of seconds"));
  }
}

TEST(SimulateCommand, RefusesCostsWhoseSumIsBeyondNumbers) {
  const Outcome outcome = run_gpipe(simulate("1f1b", {"--forward", "1e308", "--json"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
}

}  // namespace
}  // namespace gpipe::cli
