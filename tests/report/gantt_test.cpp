#include "gpipe/report/gantt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "timelines.h"

namespace gpipe::test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

std::string read(const std::string& path) {  // from the folder of golden files
  std::ifstream in(std::string(GPIPE_TEST_DATA_DIR) + "/" + path);
  EXPECT_TRUE(in) << "cannot read " << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string golden(const std::string& file) { return read("report/" + file); }

GanttOptions of_width(int width) {
  GanttOptions options;
  options.width = width;
  return options;
}

GanttOptions coloured(int width) {
  GanttOptions options = of_width(width);
  options.colour = true;
  return options;
}

std::string without_colour(const std::string& text) {
  std::string out;
  for (std::size_t byte = 0; byte < text.size(); ++byte) {
    if (text[byte] == '\x1b') {
      byte = text.find('m', byte);
    } else {
      out += text[byte];
    }
  }
  return out;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  std::stringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

// The charts of the rows, between the bars.
std::vector<std::string> charts(const std::string& text) {
  std::vector<std::string> out;
  for (const std::string& line : lines(text)) {
    const std::size_t open = line.find('|');
    if (open != std::string::npos) out.push_back(line.substr(open + 1, line.find('|', open + 1) - open - 1));
  }
  return out;
}

int num_characters(const std::string& line) {
  int count = 0;
  for (const char byte : line) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

// As a run on a real machine might measure it: no two spans alike.
Timeline jittered(Timeline timeline, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> share(0, 0.9);
  for (WorkerTimeline& worker : timeline.workers) {
    for (Span& span : worker.spans) span.start_seconds += share(random) * (span.end_seconds - span.start_seconds);
  }
  return timeline;
}

std::vector<Timeline> many_timelines() {
  std::vector<Timeline> timelines = {Timeline{},
                                     one_f_one_b_timeline(1, 1),
                                     one_f_one_b_timeline(4, 8),
                                     gpipe_timeline(4, 8, {1e-9, 1e-9}),
                                     zero_bubble_timeline(4, 8, {1e6, 3e5}),
                                     two_chunk_timeline(4, 4, {0.25e-3}),
                                     one_f_one_b_timeline(12, 48, {3.7e-5, 1e-5}),
                                     one_f_one_b_timeline(8, 400),
                                     long_timeline(3, 20000)};
  const std::size_t count = timelines.size();
  for (std::size_t index = 0; index < count; ++index) {
    timelines.push_back(jittered(timelines[index], static_cast<unsigned>(index)));
  }
  timelines[2].name = std::string(300, 'x');
  timelines[3].name = "\x1b[2J\r\n\t\xff caf\xc3\xa9 \xe4\xb8\xad";
  return timelines;
}

TEST(Gantt, DrawsOneForwardOneBackward) {
  EXPECT_EQ(to_gantt(one_f_one_b_timeline(4, 8), of_width(100)), golden("gantt_1f1b.txt"));
}

TEST(Gantt, DrawsGPipeWithRecomputation) {
  EXPECT_EQ(to_gantt(gpipe_timeline(4, 8), of_width(100)), golden("gantt_gpipe.txt"));
}

TEST(Gantt, DrawsSplitBackwardsAndTheOptimizerStep) {
  EXPECT_EQ(to_gantt(zero_bubble_timeline(4, 8, {0.0125, 0.02}), of_width(100)), golden("gantt_zero_bubble.txt"));
}

TEST(Gantt, NamesTheStageWhereAWorkerHasSeveral) {
  EXPECT_EQ(to_gantt(two_chunk_timeline(2, 3), of_width(100)), golden("gantt_two_chunks.txt"));
}

TEST(Gantt, FallsBackToLettersWhenColumnsAreFew) {
  EXPECT_EQ(to_gantt(one_f_one_b_timeline(4, 8), of_width(48)), golden("gantt_narrow.txt"));
}

TEST(Gantt, ShowsTheDensityOfAVeryLongTimeline) {
  EXPECT_EQ(to_gantt(one_f_one_b_timeline(8, 64), of_width(60)), golden("gantt_dense.txt"));
}

TEST(Gantt, HeaderShowsARealDrawing) {
  EXPECT_EQ(to_gantt(one_f_one_b_timeline(3, 4), of_width(50)), golden("gantt_header.txt"));
  const std::string header = read("../../gpipe/report/gantt.h");
  for (const std::string& line : lines(golden("gantt_header.txt")))
    EXPECT_THAT(header, HasSubstr("//     " + line + "\n"));
}

TEST(Gantt, NeverWiderThanAsked) {
  for (const Timeline& timeline : many_timelines()) {
    for (int width = 1; width <= 200; ++width) {
      for (const std::string& line : lines(to_gantt(timeline, of_width(width)))) {
        ASSERT_LE(num_characters(line), width) << line;
      }
    }
  }
}

// The caption of the shades, and the blanks or the line break in front of it.
std::string without_shades(std::string text) {
  const std::string caption = "lighter: every second stage of a worker";
  const std::size_t at = text.find(caption);
  if (at == std::string::npos) return text;
  const std::size_t before = text[at - 1] == '\n' ? 1 : 2;
  return text.erase(at - before, before + caption.size());
}

TEST(Gantt, ColourAddsNothingButTheCaptionOfTheShades) {
  for (const Timeline& timeline : many_timelines()) {
    for (int width = 40; width <= 200; width += 7) {
      const std::string plain = to_gantt(timeline, of_width(width));
      const std::string colour = to_gantt(timeline, coloured(width));
      EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
      EXPECT_THAT(colour, HasSubstr("\x1b["));
      ASSERT_EQ(without_shades(without_colour(colour)), plain);
    }
  }
}

// What stands between the chart and the last line.
std::string legend_of(const std::string& text) {
  const std::size_t begin = text.find('\n', text.rfind('|')) + 1;
  return text.substr(begin, text.rfind("makespan") - begin);
}

TEST(Gantt, TheLegendExplainsEverySignThatOccursAndNoOther) {
  for (const Timeline& timeline : many_timelines()) {
    for (int width = 40; width <= 200; width += 7) {
      const std::string text = to_gantt(timeline, of_width(width));
      const std::string legend = legend_of(text);
      std::string signs;
      for (const std::string& row : charts(text)) signs += row;
      const auto occurs = [&](const std::string& any) { return signs.find_first_of(any) != std::string::npos; };
      for (const char* letter_and_fill : {"F-", "R~", "B=", "I:", "W#", "U+"}) {
        const std::string letter(1, letter_and_fill[0]);
        ASSERT_TRUE(!occurs(letter) || legend.find(letter) != std::string::npos) << text;
        ASSERT_EQ(occurs(std::string(1, letter_and_fill[1])), legend.find(letter_and_fill) != std::string::npos)
            << text;
      }
      ASSERT_THAT(legend, HasSubstr(". idle"));
      ASSERT_EQ(occurs("0123456789"), legend.find("micro-batch 1") != std::string::npos) << text;
      ASSERT_EQ(occurs("frbiwu"), legend.find("lower case: several in a column") != std::string::npos) << text;
    }
  }
}

TEST(Gantt, TheLegendExplainsStagesAndTheirShades) {
  const Timeline timeline = two_chunk_timeline(2, 3);
  EXPECT_THAT(legend_of(to_gantt(timeline, of_width(100))), HasSubstr("2F1: stage 2, micro-batch 1"));
  EXPECT_THAT(legend_of(to_gantt(timeline, of_width(100))), Not(HasSubstr("lighter")));
  EXPECT_THAT(to_gantt(timeline, coloured(100)), HasSubstr("lighter: every second stage of a worker"));
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(2, 3), coloured(100)), Not(HasSubstr("lighter")));
}

TEST(Gantt, ColourEndsWithTheLine) {
  for (const std::string& line : lines(to_gantt(zero_bubble_timeline(4, 8, {1, 1}), coloured(90)))) {
    const std::size_t last = line.rfind("\x1b[");
    if (last != std::string::npos) {
      EXPECT_EQ(line.substr(last, 4), "\x1b[0m") << line;
    }
  }
}

TEST(Gantt, EveryKindAndIdleHaveColoursOfTheirOwn) {
  std::map<char, std::string> colour_of;  // of the first character painted with it
  for (const Timeline& timeline : {gpipe_timeline(2, 3), zero_bubble_timeline(2, 3, {1, 1})}) {
    const std::string text = to_gantt(timeline, coloured(100));
    for (std::size_t code = text.find('\x1b'); code != std::string::npos; code = text.find('\x1b', code + 1)) {
      const std::size_t end = text.find('m', code);
      const char painted = text.at(end + 1);
      if (std::string("FRBIWU.").find(painted) != std::string::npos) {
        colour_of[painted] = text.substr(code, end - code);
      }
    }
  }
  std::set<std::string> colours;
  for (const auto& entry : colour_of) colours.insert(entry.second);
  EXPECT_EQ(colour_of.size(), 7u);
  EXPECT_EQ(colours.size(), 7u);
}

TEST(Gantt, EverySpanOfASmallTimelineAppearsOnItsOwnRow) {
  for (const Timeline& timeline : {one_f_one_b_timeline(4, 8), gpipe_timeline(4, 8), zero_bubble_timeline(4, 8),
                                   one_f_one_b_timeline(4, 8, {1e-9, 0.5e-9}), jittered(gpipe_timeline(2, 4), 1)}) {
    const std::vector<std::string> rows = charts(to_gantt(timeline, of_width(200)));
    ASSERT_EQ(rows.size(), timeline.workers.size());
    for (std::size_t worker = 0; worker < rows.size(); ++worker) {
      std::size_t from = 0;
      for (const Span& span : timeline.workers[worker].spans) {
        if ((span.end_seconds - span.start_seconds) * 190 < 2 * timeline.makespan_seconds) continue;
        const std::string label = letter(span.action.kind) + std::to_string(span.action.micro_batch);
        from = rows[worker].find(label, from);
        ASSERT_NE(from, std::string::npos) << label << " is missing or out of order in " << rows[worker];
      }
    }
  }
}

TEST(Gantt, EqualSpansOnAGridAreEquallyWide) {
  for (const double unit : {1.0, 0.1, 1.0 / 3, 7.3e-9, 1e6}) {
    const Timeline timeline = one_f_one_b_timeline(4, 8, {unit, unit * 0.37});
    for (int width = 60; width <= 200; ++width) {
      std::set<std::size_t> widths;
      for (const std::string& row : charts(to_gantt(timeline, of_width(width)))) {
        for (std::size_t at = row.find('F'); at != std::string::npos; at = row.find('F', at + 1)) {
          widths.insert(row.find_first_not_of("0123456789-", at + 1) - at);
        }
      }
      ASSERT_EQ(widths.size(), 1u) << "unit " << unit << ", width " << width;
    }
  }
}

TEST(Gantt, UsesMostOfTheWidthWhenTimesLieOnNoGrid) {
  for (const std::string& row : charts(to_gantt(jittered(one_f_one_b_timeline(4, 8), 3), of_width(120)))) {
    EXPECT_EQ(row.size(), 120u - 3 - 6);
  }
}

TEST(Gantt, LettersOfADenseRowStandInProportionToTheTimes) {
  const std::vector<std::string> rows = charts(to_gantt(long_timeline(2, 30000), of_width(100)));
  ASSERT_EQ(rows.size(), 2u);
  for (const std::string& row : rows) {
    const double forwards = static_cast<double>(std::count(row.begin(), row.end(), 'f'));
    EXPECT_NEAR(forwards / static_cast<double>(row.size()), 1.0 / 3, 0.03) << row;
  }
}

TEST(Gantt, AFinelyInterruptedRowShowsItsIdleShare) {
  Timeline timeline = long_timeline(1, 30000);
  for (Span& span : timeline.workers[0].spans) span.end_seconds -= 0.5 * (span.end_seconds - span.start_seconds);
  const std::string row = charts(to_gantt(timeline, of_width(100))).at(0);
  EXPECT_NEAR(static_cast<double>(std::count(row.begin(), row.end(), '.')), 0.5 * static_cast<double>(row.size()), 3)
      << row;
}

TEST(Gantt, TimesAreInUnitsThatFitThem) {
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(2, 2)), HasSubstr("makespan 9 s"));
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(2, 2, {1e-3})), HasSubstr("makespan 9 ms"));
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(2, 2, {1.25e-4})), HasSubstr("makespan 1.125 ms"));
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(2, 2, {1e-6})), HasSubstr("makespan 9 µs"));
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(2, 2, {1e-9})), HasSubstr("makespan 9 ns"));
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(2, 2, {1e6})), HasSubstr("makespan 9000000 s"));
  EXPECT_THAT(lines(to_gantt(one_f_one_b_timeline(2, 2, {1e-6}))).at(1), HasSubstr("5 µs"));
  EXPECT_THAT(lines(to_gantt(one_f_one_b_timeline(2, 2, {0.04e-3}))).at(1), HasSubstr("100 µs"));
}

TEST(Gantt, AxisMarksAreWhereTheTimeIs) {
  const std::vector<std::string> text = lines(to_gantt(one_f_one_b_timeline(4, 8), of_width(100)));
  const std::size_t origin = text.at(2).find('|') + 1;
  EXPECT_EQ(text.at(1).find('0'), origin);
  EXPECT_EQ(text.at(1).find("10 s"), origin + 20);
  EXPECT_EQ(text.at(2).find("B0"), origin + 20);
}

TEST(Gantt, CountsTheWorkersItLeavesOut) {
  GanttOptions options;
  options.max_workers = 3;
  const std::string text = to_gantt(one_f_one_b_timeline(5, 2), options);
  EXPECT_EQ(charts(text).size(), 3u);
  EXPECT_THAT(text, HasSubstr("… and 2 more workers\n"));
  options.max_workers = 4;
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(5, 2), options), HasSubstr("… and 1 more worker\n"));
  options.max_workers = 5;
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(5, 2), options), Not(HasSubstr("more worker")));
  options.max_workers = -1;
  EXPECT_THAT(to_gantt(one_f_one_b_timeline(5, 2), options), HasSubstr("… and 5 more workers\n"));
}

TEST(Gantt, ATimelineWithoutTimeHasEmptyRows) {
  Timeline timeline = one_f_one_b_timeline(2, 2, {0});
  for (const double makespan :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    timeline.makespan_seconds = makespan;
    const std::vector<std::string> rows = charts(to_gantt(timeline));
    EXPECT_EQ(rows.size(), 2u);
    EXPECT_THAT(rows, Each(std::string(91, '.')));
  }
}

TEST(Gantt, SpansOutsideTheMakespanAreClipped) {
  Timeline timeline = one_f_one_b_timeline(1, 2);
  const double infinity = std::numeric_limits<double>::infinity();
  timeline.workers[0].spans = {
      {{F, 0, 0}, -infinity, 3}, {{F, 0, 1}, 3, 3}, {{B, 0, 0}, 3, infinity}, {{B, 0, 1}, std::nan(""), std::nan("")}};
  EXPECT_THAT(charts(to_gantt(timeline, of_width(21))), ::testing::ElementsAre("F0----B0===="));
}

TEST(Gantt, HostileNamesCannotMoveTheCursor) {
  Timeline timeline = one_f_one_b_timeline(2, 2);
  timeline.name = "a\x1b[2J\r\nb\t\x7f\xff\xc2\x9b";
  const std::string text = to_gantt(timeline);
  EXPECT_EQ(lines(text).front(), "a?[2J??b?????  2 stages  2 micro-batches");
}

}  // namespace
}  // namespace gpipe::test
