#include "train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <limits>
#include <sstream>

namespace gpipe::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Progress some_progress() {
  Progress progress;
  progress.epoch = 2;
  progress.epochs = 10;
  progress.step = 37;
  progress.steps = 469;
  progress.loss = 0.43211;
  progress.items_per_second = 1523.4;
  progress.eta_seconds = 65;
  progress.bubble_fraction = 0.1234;
  progress.learning_rate = 1e-3;
  progress.peak_bytes = {81 << 20, 64 << 20};
  return progress;
}

constexpr const char* kLine =
    "train  epoch 2/10  step 37/469  loss 0.4321  1523 samples/s  ETA 1:05  bubble 12.3 %  peak 81 MiB, "
    "64 MiB  lr 0.001";

// Keeps what was written, a piece each.
struct Screen {
  std::vector<std::string> written;
  int columns = 80;

  ProgressReporter reporter(bool is_terminal) {
    ProgressStyle style;
    style.is_terminal = is_terminal;
    style.columns = [this] { return columns; };
    return {[this](std::string_view text) { written.emplace_back(text); }, style};
  }
};

TEST(ProgressLine, SaysEverythingThatIsKnown) { EXPECT_EQ(progress_line(some_progress(), 200), kLine); }

TEST(ProgressLine, LeavesOutWhatIsUnknown) {
  Progress progress;
  EXPECT_EQ(progress_line(progress, 80), "train");
  progress.step = 3;
  progress.phase = "evaluate";
  progress.unit = "tokens";
  progress.items_per_second = 1.25;
  EXPECT_EQ(progress_line(progress, 80), "evaluate  step 3  1.25 tokens/s");
}

TEST(ProgressLine, ShowsALossThatIsNoNumber) {
  Progress progress;
  progress.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(progress_line(progress, 80), "train  loss nan");
}

TEST(ProgressLine, DropsWhatDoesNotFitFromTheEnd) {
  const std::string whole = kLine;
  for (std::size_t width = 1; width <= whole.size(); ++width) {
    const std::string line = progress_line(some_progress(), width);
    EXPECT_LE(line.size(), width);
    EXPECT_EQ(whole.rfind(line, 0), 0u) << line;
  }
  EXPECT_EQ(progress_line(some_progress(), 40), "train  epoch 2/10  step 37/469");
  EXPECT_EQ(progress_line(some_progress(), 3), "tra");
}

// The names of the fields of a line, without their values.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> names;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (std::isalpha(static_cast<unsigned char>(word.front())) != 0) names.push_back(word);
  }
  return names;
}

TEST(ProgressLayout, FieldsNeitherJumpNorComeAndGoAsNumbersGetLongerAndShorter) {
  for (std::size_t width = 10; width <= 130; ++width) {
    ProgressLayout layout;
    std::string line = layout.line(some_progress(), width);
    Progress progress = some_progress();
    progress.step = 469;
    progress.loss = 123.4567;
    progress.items_per_second = 98765;
    progress.eta_seconds = 36000;
    layout.line(progress, width);  // the longest there will be
    const std::size_t num_fields = fields_of(layout.line(progress, width)).size();
    for (int step = 1; step <= 469; ++step) {
      progress.step = step;
      progress.loss = 123.4567 / step;
      progress.items_per_second = 98765.0 / step;
      progress.eta_seconds = 36000.0 / step;
      line = layout.line(progress, width);
      EXPECT_LE(line.size(), width);
      ASSERT_EQ(fields_of(line).size(), num_fields) << line;
    }
  }
}

TEST(ProgressLayout, AFieldStaysInItsColumn) {
  ProgressLayout layout;
  Progress progress = some_progress();
  progress.items_per_second = 12345;
  const std::size_t column = layout.line(progress, 120).find("ETA");
  progress.items_per_second = 9.5;
  EXPECT_EQ(layout.line(progress, 120).find("ETA"), column);
}

TEST(ProgressLayout, MakesUseOfAWindowThatBecomesWider) {
  ProgressLayout layout;
  EXPECT_EQ(layout.line(some_progress(), 20), "train  epoch 2/10");
  EXPECT_EQ(layout.line(some_progress(), 200), kLine);
}

TEST(EvaluationProgress, SaysHowFarItIsAndHowLongItWillTake) {
  EXPECT_EQ(progress_line(progress_of({"evaluate", "samples", 2000, 10000}, 2), 80),
            "evaluate  samples 2000/10000  1000 samples/s  ETA 0:08");
  EXPECT_EQ(progress_line(progress_of({"translate", "sentences", 0, 50}, 0), 80),
            "translate  sentences 0/50  0 sentences/s  ETA ?");
}

TEST(EvaluationProgress, MeasuresEachPhaseFromItsBeginning) {
  Screen screen;
  ProgressReporter reporter = screen.reporter(true);
  EvaluationReporter evaluation(reporter);
  evaluation.update({"evaluate", "samples", 0, 100}, 10);
  evaluation.update({"evaluate", "samples", 50, 100}, 15);
  evaluation.update({"translate", "sentences", 0, 10}, 20);
  evaluation.update({"translate", "sentences", 5, 10}, 30);
  ASSERT_EQ(screen.written.size(), 4u);
  EXPECT_EQ(screen.written[1], "\r\x1b[Kevaluate  samples 50/100  10 samples/s  ETA 0:05");
  EXPECT_EQ(screen.written[3], "\r\x1b[Ktranslate  sentences 5/10  0.5 sentences/s  ETA 0:10");
}

TEST(ProgressReporter, IsQuietForAnIntervalAfterItsBeginning) {
  Screen screen;
  ProgressReporter reporter = screen.reporter(false);
  reporter.begin(100);
  reporter.update(Progress(), 109);
  EXPECT_THAT(screen.written, IsEmpty());
  reporter.update(Progress(), 110);
  EXPECT_THAT(screen.written, ElementsAre("train\n"));
}

TEST(ProgressLine, WritesDurationsAsClocksDo) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3599), "59:59");
  EXPECT_EQ(format_duration(7384), "2:03:04");
  EXPECT_EQ(format_duration(3 * 86400 + 4 * 3600), "3 d 04:00");
  EXPECT_EQ(format_duration(-5), "0:00");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(ProgressReporter, RewritesOneLineOfATerminalAtMostTenTimesASecond) {
  Screen screen;
  screen.columns = 32;
  ProgressReporter reporter = screen.reporter(true);
  for (int step = 0; step < 100; ++step) reporter.update(some_progress(), 5 + step * 0.01);
  EXPECT_GE(screen.written.size(), 9u);
  EXPECT_LE(screen.written.size(), 10u);
  for (const std::string& text : screen.written) EXPECT_EQ(text, "\r\x1b[Ktrain  epoch 2/10  step 37/469");
}

TEST(ProgressReporter, FollowsTheWidthOfTheTerminal) {
  Screen screen;
  ProgressReporter reporter = screen.reporter(true);
  screen.columns = 20;
  reporter.update(some_progress(), 0);
  screen.columns = 12;
  reporter.update(some_progress(), 1);
  EXPECT_THAT(screen.written, ElementsAre("\r\x1b[Ktrain  epoch 2/10", "\r\x1b[Ktrain"));
}

TEST(ProgressReporter, PrintsMessagesAboveTheLiveLine) {
  Screen screen;
  ProgressReporter reporter = screen.reporter(true);
  reporter.update(Progress(), 0);
  reporter.print("saved");
  reporter.clear();
  reporter.clear();
  EXPECT_THAT(screen.written, ElementsAre("\r\x1b[Ktrain", "\r\x1b[K", "saved\n", "train", "\r\x1b[K"));
}

TEST(ProgressReporter, PrintsPlainLinesEverySomeSecondsWhenPiped) {
  Screen screen;
  ProgressReporter reporter = screen.reporter(false);
  for (int second = 0; second < 25; ++second) reporter.update(some_progress(), second);
  reporter.print("done");
  reporter.clear();
  const std::string line = std::string(kLine) + "\n";
  EXPECT_THAT(screen.written, ElementsAre(line, line, line, "done\n"));
}

TEST(ProgressReporter, WritesNothingBeforeTheFirstUpdate) {
  Screen screen;
  ProgressReporter reporter = screen.reporter(true);
  reporter.clear();
  EXPECT_THAT(screen.written, IsEmpty());
}

}  // namespace
}  // namespace gpipe::train
