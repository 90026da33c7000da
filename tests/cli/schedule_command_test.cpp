#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <future>
#include <sstream>
#include <string>

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

TEST(ScheduleCommand, AnswersAnUnknownFormatWithTheNearestOne) {
  const Outcome outcome = run_gpipe(schedule("gpipe", {"--format", "gannt"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--format: 'gannt' is not one of text, csv, gantt, svg; did you mean 'gantt'?"));
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
