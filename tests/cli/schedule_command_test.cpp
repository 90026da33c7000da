#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "gpipe/plan/plan_json.h"
#include "gpipe/schedule/registry.h"
#include "run_command.h"
#include "tests/os/file_limits.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Arguments schedule(const std::string& name, const Arguments& more = {}) {
  Arguments arguments = {"schedule", name, "--stages", "4", "--micro-batches", "8"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(ScheduleCommand, PrintsOneLineAWorker) {
  const Outcome outcome = run_gpipe({"schedule", "gpipe", "--stages", "2", "--micro-batches", "2"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "F0 F1 B0 B1\nF0 F1 B0 B1\n");
  EXPECT_EQ(outcome.err, "");
}

TEST(ScheduleCommand, PrintsCsv) {
  EXPECT_EQ(run_gpipe({"schedule", "gpipe", "--stages", "2", "--micro-batches", "2", "--format", "csv"}).out,
            "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
}

TEST(ScheduleCommand, PrintsTheBackwardOrderOfThePaper) {
  const Arguments arguments = {"schedule", "gpipe", "--stages", "1", "--micro-batches", "3", "--descending"};
  EXPECT_EQ(run_gpipe(arguments).out, "F0 F1 F2 B2 B1 B0\n");
  Arguments with_recompute = arguments;
  with_recompute.insert(with_recompute.end(), {"--recompute", "always"});
  EXPECT_EQ(run_gpipe(with_recompute).out, "F0 F1 F2 B2 R1 B1 R0 B0\n");
}

TEST(ScheduleCommand, DescendingIsForGpipeOnly) {
  const Outcome outcome = run_gpipe(schedule("1f1b", {"--descending"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--descending is an order of 'gpipe' only, not of '1f1b'"));
}

TEST(ScheduleCommand, WritesTheUpdatesOfTheStages) {
  EXPECT_EQ(run_gpipe({"schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "--updates"}).out,
            "F0 F1 B0 B1 U\nF0 B0 F1 B1 U\n");
  const Outcome drawn = run_gpipe(schedule("zb-v", {"--updates", "--format", "gantt", "--width", "100"}));
  EXPECT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_THAT(drawn.out, HasSubstr(" update"));
}

TEST(ScheduleCommand, InsertsRecompute) {
  const Arguments arguments = {"schedule", "gpipe", "--stages", "1", "--micro-batches", "2", "--recompute"};
  const auto with = [&arguments](const char* mode) {
    Arguments all = arguments;
    all.emplace_back(mode);
    return run_gpipe(all);
  };
  EXPECT_EQ(with("always").out, "F0 F1 R0 B0 R1 B1\n");
  EXPECT_EQ(with("except-last").out, "F0 F1 R0 B0 B1\n");
  EXPECT_EQ(with("never").out, "F0 F1 B0 B1\n");
  EXPECT_EQ(with("allways").exit_code, 2);
  EXPECT_THAT(with("allways").err, HasSubstr("did you mean always?"));
}

TEST(ScheduleCommand, ChunksMultiplyTheStages) {
  const Outcome outcome = run_gpipe(schedule("interleaved", {"--chunks", "3", "--format", "csv"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("11F0"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("12F0")));
}

TEST(ScheduleCommand, RefusesChunksAScheduleCannotTake) {
  const Outcome outcome = run_gpipe(schedule("1f1b", {"--chunks", "2"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("interleaved"));
}

TEST(ScheduleCommand, EveryNameInEveryFormatIsProvenByCheck) {
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const char* format : {"text", "csv"}) {
      for (const char* recompute : {"never", "always"}) {
        const Outcome printed = run_gpipe(schedule(info.name, {"--format", format, "--recompute", recompute}));
        EXPECT_EQ(printed.exit_code, 0) << info.name << printed.err;
        const Outcome checked = run_gpipe({"check", "-", "--canonical"}, printed.out);
        EXPECT_EQ(checked.exit_code, 0) << info.name << " " << format << "\n" << checked.out << checked.err;
        EXPECT_THAT(checked.out, HasSubstr("4 workers"));
        EXPECT_THAT(checked.out, HasSubstr("8 micro-batches"));
      }
    }
  }
}

// With one blank where there are several, or a new line.
std::string on_one_line(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += word + " ";
  return line;
}

TEST(ScheduleCommand, ListsEveryScheduleWithItsFiguresAndItsSummary) {
  const Outcome outcome = run_gpipe({"schedule", "--list"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, StartsWith("4 workers, 8 micro-batches:\n"));
  for (const ScheduleInfo& info : schedule_registry()) {
    EXPECT_THAT(outcome.out, HasSubstr(std::string("\n") + info.name + " "));
    EXPECT_THAT(on_one_line(outcome.out), HasSubstr(info.summary));
  }
  EXPECT_THAT(on_one_line(outcome.out), HasSubstr(" 1f1b 1 27.3 % 4 48 one forward, one backward"));
  EXPECT_THAT(on_one_line(outcome.out), HasSubstr(" interleaved any, 2 15.8 % 5.5 112 1F1B over"));
  EXPECT_THAT(on_one_line(outcome.out), HasSubstr(" hanayo even, 2 15.8 % 5.5 96 waves"));
  EXPECT_THAT(on_one_line(outcome.out), HasSubstr(" forward 1 27.3 % 1 24 forwards only"));
  EXPECT_THAT(on_one_line(outcome.out), HasSubstr("A Pipeline trains with all of them but forward, "));
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(ScheduleCommand, ListsTheSchedulesAtAnySize) {
  const Outcome outcome = run_gpipe({"schedule", "--list", "--stages", "8", "--micro-batches", "16"});
  EXPECT_THAT(outcome.out, StartsWith("8 workers, 16 micro-batches:\n"));
  EXPECT_THAT(on_one_line(outcome.out), HasSubstr(" 1f1b 1 30.4 % 8 224 one forward, one backward"));
  const Outcome refused = run_gpipe({"schedule", "--list", "--chunks", "4"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("leave --chunks out"));
}

// Searches in a profile whose layers take 1, 2, 3, 4, 1, 2, 3 and 4 seconds forward, and twice that backward.
class SearchCommand : public ::testing::Test {
 protected:
  static std::string profile_of(double second) {
    nlohmann::json profile = {{"layers", nlohmann::json::array()}, {"skips", nlohmann::json::array()}};
    for (int layer = 0; layer < 8; ++layer) {
      const double seconds = (layer % 4 + 1) * second;
      profile["layers"].push_back({{"name", "layer" + std::to_string(layer)},
                                   {"forward_seconds", seconds},
                                   {"backward_seconds", 2 * seconds},
                                   {"input_grad_seconds", seconds},
                                   {"weight_grad_seconds", seconds},
                                   {"parameter_bytes", 1 << 20},
                                   {"activation_bytes", 4 << 20},
                                   {"output_bytes", 1 << 10}});
    }
    return profile.dump();
  }

  Outcome search(const Arguments& more) const {
    Arguments arguments = {"schedule", "search",          "--profile", profile_,    "--stages",
                           "2",        "--micro-batches", "4",         "--seconds", "0.1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_gpipe(arguments);
  }

  TemporaryFolder folder_;
  std::string profile_ = folder_.write("profile.json", profile_of(1));
};

TEST_F(SearchCommand, WritesAScheduleThatIsCheckedAndSimulatesAsThePlanPredicts) {
  for (const char* format : {"text", "csv"}) {
    SCOPED_TRACE(format);
    const std::string plan_file = folder_.path(std::string(format) + ".json");
    const std::string file = folder_.path(format);
    const Outcome found = search({"--format", format, "--plan", plan_file, "--output", file});
    ASSERT_EQ(found.exit_code, 0) << found.err;
    EXPECT_EQ(found.out, "");
    const Plan plan = parse_plan(read_file(plan_file));
    ASSERT_TRUE(plan.order);
    std::string balance;
    for (const int layers : plan.layers_per_stage) balance += (balance.empty() ? "" : ",") + std::to_string(layers);
    EXPECT_THAT(found.err, AllOf(HasSubstr("1f1b "), HasSubstr("zb-v "), HasSubstr("% above it"), HasSubstr(balance)));
    EXPECT_THAT(read_file(file), StartsWith("# layers per stage: " + balance + " (gpipe simulate --balance"));
    EXPECT_EQ(parse_schedule(read_file(file)).workers, plan.order->workers);

    const Outcome checked = run_gpipe({"check", file, "--canonical"});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
    const Outcome simulated =
        run_gpipe({"simulate", "--file", file, "--profile", profile_, "--balance", balance, "--json"});
    ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
    EXPECT_NEAR(nlohmann::json::parse(simulated.out).at("makespan"), plan.predicted_step_seconds, 1e-9);
  }
}

TEST_F(SearchCommand, FindsTheSameEveryTime) {
  const Outcome first = search({});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(search({}).out, first.out);
}

TEST_F(SearchCommand, IsWhatPlanDoesWithThatName) {
  const Outcome outcome = run_gpipe(
      {"plan", "--profile", profile_, "--stages", "2", "--micro-batches", "4", "--schedule", "search", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out).at("schedule"), "search");
}

TEST_F(SearchCommand, RefusesWhatASearchChoosesAndWhatIsMissing) {
  EXPECT_THAT(search({"--chunks", "2"}).err, HasSubstr("leave --chunks out"));
  EXPECT_THAT(search({"--micro-batches", "auto"}).exit_code, 2);
  EXPECT_THAT(run_gpipe({"schedule", "search", "--stages", "2", "--micro-batches", "4"}).err,
              HasSubstr("--profile is missing"));
  EXPECT_THAT(run_gpipe(schedule("1f1b", {"--seconds", "1"})).err, HasSubstr("'1f1b' is no search"));
  const std::string one = folder_.path("one");
  const Outcome both = search({"--plan", one, "--output", one});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("--plan and --output both name"));
  EXPECT_FALSE(std::filesystem::exists(one));
  const Outcome workers = search({"--workers", folder_.write("w.json", R"({"workers": [{"speed": 1}]})")});
  EXPECT_EQ(workers.exit_code, 2);
  EXPECT_THAT(workers.err, HasSubstr("has 1 worker, and the pipeline has 2"));
}

TEST_F(SearchCommand, OfLayersThatTakeNoTimeHasNoShares) {
  const Outcome outcome = run_gpipe({"schedule", "search", "--profile", folder_.write("zeros.json", profile_of(0)),
                                     "--stages", "2", "--micro-batches", "4", "--seconds", "0.1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("lower bound, these stages"), Not(HasSubstr("+-")), Not(HasSubstr("%"))));
}

TEST(ScheduleCommand, AnswersAnUnknownNameWithTheNearestOne) {
  const Outcome outcome = run_gpipe(schedule("gpip"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("did you mean gpipe?"));
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(run_gpipe({"schedule", "interleavd"}).err, HasSubstr("did you mean interleaved?"));
}

TEST(ScheduleCommand, SaysWhatIsMissing) {
  EXPECT_THAT(run_gpipe({"schedule"}).err, HasSubstr("which schedule?"));
  EXPECT_THAT(run_gpipe({"schedule", "gpipe"}).err, HasSubstr("--stages is missing"));
  EXPECT_THAT(run_gpipe({"schedule", "gpipe", "--stages", "2"}).err, HasSubstr("--micro-batches is missing"));
  EXPECT_EQ(run_gpipe({"schedule", "gpipe", "--stages", "2"}).exit_code, 2);
}

TEST(ScheduleCommand, RefusesCountsThatAreNone) {
  for (const char* count : {"0", "-3", "abc", "1e9", "99999999999", ""}) {
    const Outcome outcome = run_gpipe({"schedule", "gpipe", "--stages", count, "--micro-batches", "8"});
    EXPECT_EQ(outcome.exit_code, 2) << count;
    EXPECT_THAT(outcome.err, HasSubstr("--stages: '" + std::string(count) + "' is not a whole number")) << count;
  }
}

TEST(ScheduleCommand, RefusesGiganticSchedulesBeforeMakingThem) {
  for (const ScheduleInfo& info : schedule_registry()) {
    const Outcome outcome =
        run_gpipe({"schedule", info.name, "--stages", "2000000000", "--micro-batches", "2000000000"});
    EXPECT_EQ(outcome.exit_code, 2) << info.name;
    EXPECT_THAT(outcome.err, HasSubstr("limit is 65536 in all")) << info.name;
  }
}

TEST(ScheduleCommand, DrawsAPlainGanttOf100ColumnsWhenPiped) {
  const Outcome outcome = run_gpipe(schedule("1f1b", {"--format", "gantt"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("makespan 33"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
  const Outcome painted = run_gpipe(schedule("1f1b", {"--format", "gantt", "--color", "always"}));
  EXPECT_THAT(painted.out, HasSubstr("\x1b["));
}

TEST(ScheduleCommand, PaintsTheGanttOnATerminalUnlessToldNotTo) {
  const Arguments gantt = schedule("1f1b", {"--format", "gantt"});
  EXPECT_THAT(run_gpipe_on_terminal(gantt, 80).out, HasSubstr("\x1b["));
  EXPECT_THAT(run_gpipe_on_terminal(gantt, 80, {"NO_COLOR=1"}).out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(run_gpipe_on_terminal(gantt, 80, {"TERM=dumb"}).out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(run_gpipe_on_terminal(schedule("1f1b", {"--format", "gantt", "--color", "never"}), 80).out,
              Not(HasSubstr("\x1b")));
}

// Columns of the first row of a gantt.
std::size_t row_width(const std::string& text) {
  const std::size_t row = text.find("\n0 |");
  return text.find_first_of("\r\n", row + 1) - row - 1;
}

TEST(ScheduleCommand, TheGanttFillsTheWidthOfTheTerminal) {
  const auto width = [](int columns, const Arguments& environment) {
    const Outcome outcome = run_gpipe_on_terminal(
        {"schedule", "1f1b", "--stages", "2", "--micro-batches", "300", "--format", "gantt", "--color", "never"},
        columns, environment);
    return row_width(outcome.out);
  };
  EXPECT_EQ(width(80, {}), 80u);
  EXPECT_EQ(width(160, {}), 160u);
  EXPECT_EQ(width(0, {"COLUMNS=120"}), 120u);
  EXPECT_EQ(width(0, {"COLUMNS=wide"}), 100u);
}

TEST(ScheduleCommand, TheGanttIsAsWideAsAskedFor) {
  const auto gantt = [](const std::string& width) {
    return Arguments{"schedule", "1f1b",  "--stages", "2",     "--micro-batches", "300",
                     "--format", "gantt", "--color",  "never", "--width",         width};
  };
  EXPECT_EQ(row_width(run_gpipe(gantt("72")).out), 72u);
  EXPECT_EQ(row_width(run_gpipe(gantt("300")).out), 300u);
  EXPECT_EQ(row_width(run_gpipe_on_terminal(gantt("72"), 160).out), 72u);
  for (const char* width : {"0", "19", "10001", "-1", "wide", ""}) {
    const Outcome outcome = run_gpipe(gantt(width));
    EXPECT_EQ(outcome.exit_code, 2) << width;
    EXPECT_THAT(outcome.err, HasSubstr("--width: '" + std::string(width) + "' is not a")) << width;
  }
}

TEST(ScheduleCommand, RefusesAWidthOfWhatIsNoGantt) {
  const Arguments arguments = {"schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "--width", "72"};
  const Outcome outcome = run_gpipe(arguments);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err, "gpipe: --width is about --format gantt\n  add that, or leave --width out\n");
}

TEST(ScheduleCommand, DrawsASvg) {
  const Outcome outcome = run_gpipe(schedule("zb-v", {"--format", "svg"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("<svg"));
  EXPECT_THAT(outcome.out, HasSubstr("</svg>"));
}

TEST(ScheduleCommand, PrintsTheOrderOfMessages) {
  const Arguments arguments = {"schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "--format", "messages"};
  EXPECT_EQ(run_gpipe(arguments).out,
            "activation 0 -> 1 of micro-batch 0\n"
            "activation 0 -> 1 of micro-batch 1\n"
            "gradient 1 -> 0 of micro-batch 0\n"
            "gradient 1 -> 0 of micro-batch 1\n");
}

TEST(ScheduleCommand, AnswersAnUnknownFormatWithTheNearestOne) {
  const Outcome outcome = run_gpipe(schedule("gpipe", {"--format", "gannt"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("--format: 'gannt' is not one of text, csv, gantt, svg, messages; did you mean 'gantt'?"));
  EXPECT_THAT(run_gpipe(schedule("gpipe", {"--color", "alway"})).err, HasSubstr("did you mean 'always'?"));
}

TEST(ScheduleCommand, WritesAFileAndNeverOverwritesItUnasked) {
  const TemporaryFolder folder;
  const std::string file = folder.path("schedule.txt");
  const Outcome first = run_gpipe(schedule("gpipe", {"--output", file}));
  EXPECT_EQ(first.exit_code, 0);
  EXPECT_EQ(first.out, "");
  EXPECT_THAT(read_file(file), StartsWith("F0 F1 F2 F3 F4 F5 F6 F7 B0"));

  const Outcome second = run_gpipe(schedule("1f1b", {"--output", file}));
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr(file));
  EXPECT_THAT(second.err, HasSubstr("--force"));
  EXPECT_THAT(read_file(file), StartsWith("F0 F1 F2 F3 F4 F5 F6 F7 B0"));

  EXPECT_EQ(run_gpipe(schedule("1f1b", {"--output", file, "--force"})).exit_code, 0);
  EXPECT_THAT(read_file(file), StartsWith("F0 F1 F2 F3 B0"));
}

TEST(ScheduleCommand, WritesIntoAPipeAndReplacesNothingButPlainFiles) {
  const TemporaryFolder folder;
  folder.write("file", "old");
  std::filesystem::create_symlink("file", folder.path("link"));
  std::filesystem::create_symlink("none", folder.path("dangling"));
  for (const char* name : {"link", "dangling"}) {
    const Outcome outcome = run_gpipe(schedule("gpipe", {"--output", folder.path(name), "--force"}));
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("it is a link, not a plain file"), HasSubstr("name another file")));
    EXPECT_TRUE(std::filesystem::is_symlink(folder.path(name)));
  }
  EXPECT_EQ(read_file(folder.path("file")), "old");
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  auto reader = std::async(std::launch::async, [&] { return read_file(pipe); });
  const Outcome outcome = run_gpipe(schedule("gpipe", {"--output", pipe, "--force"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(reader.get(), StartsWith("F0 F1 F2 F3"));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(ScheduleCommand, ThatFailsToWriteLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string file = folder.write("schedule.txt", "old");
  const Arguments large = {"schedule", "gpipe", "--stages", "4", "--micro-batches", "9000", "--output"};
  Arguments forced = large;
  forced.insert(forced.end(), {file, "--force"});
  Arguments fresh = large;
  fresh.push_back(folder.path("new"));
  const FileSizeLimit limit(1000);
  for (const Arguments& arguments : {forced, fresh}) {
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("File too large"), HasSubstr("ulimit -f")));
  }
  EXPECT_EQ(read_file(file), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path("")), std::filesystem::directory_iterator()),
            1);
}

TEST(ScheduleCommand, NamesTheFileItCannotWrite) {
  const TemporaryFolder folder;
  for (const std::string& path : {folder.path("no/such/folder"), folder.path("")}) {
    const Outcome outcome = run_gpipe(schedule("gpipe", {"--output", path, "--force"}));
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("cannot write '" + path + "'"));
  }
  const Outcome full = run_gpipe(schedule("gpipe", {"--output", "/dev/full"}));
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, AllOf(HasSubstr("No space left on device"), HasSubstr("free some space")));
}

}  // namespace
}  // namespace gpipe::cli
