#include "gpipe/report/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "timelines.h"

namespace gpipe::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t number = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++number;
  return number;
}

bool starts_with(const std::string& text, std::size_t at, const std::string& what) {
  return text.compare(at, what.size(), what) == 0;
}

// What is between the end of `before` and the next `after`, for every `before`.
std::vector<std::string> all_between(const std::string& text, const std::string& before, const std::string& after) {
  std::vector<std::string> out;
  for (std::size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + 1)) {
    const std::size_t begin = at + before.size();
    out.push_back(text.substr(begin, text.find(after, begin) - begin));
  }
  return out;
}

// ` name="value"`, any number of times.
bool are_attributes(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t equals = text.find("=\"", at);
    if (text[at] != ' ' || equals == std::string::npos || equals < at + 2) return false;
    if (text.substr(at + 1, equals - at - 1).find_first_of(" \"<>&") != std::string::npos) return false;
    const std::size_t quote = text.find('"', equals + 2);
    if (quote == std::string::npos || text.substr(equals + 2, quote - equals - 2).find('&') != std::string::npos)
      return false;
    at = quote + 1;
  }
  return true;
}

// Opens or closes an element; false for a tag that is malformed or closes another one.
bool read_tag(std::string tag, std::vector<std::string>& open) {
  if (tag.find('<') != std::string::npos) return false;
  if (!tag.empty() && tag.front() == '/') {
    if (open.empty() || open.back() != tag.substr(1)) return false;
    open.pop_back();
    return true;
  }
  const bool is_empty = !tag.empty() && tag.back() == '/';
  if (is_empty) tag.pop_back();
  const std::string name = tag.substr(0, tag.find(' '));
  if (!is_empty) open.push_back(name);
  return !name.empty() && are_attributes(tag.substr(name.size()));
}

// Every tag is closed in order, attributes are quoted, text holds no bare & or > and no control character.
::testing::AssertionResult is_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < xml.size(); ++at) {
    const unsigned char byte = static_cast<unsigned char>(xml[at]);
    const bool is_entity =
        starts_with(xml, at, "&amp;") || starts_with(xml, at, "&lt;") || starts_with(xml, at, "&gt;");
    if (byte == '<') {
      const std::string tag = xml.substr(at + 1, xml.find('>', at) - at - 1);
      if (!read_tag(tag, open)) return ::testing::AssertionFailure() << "bad tag <" << tag << ">";
      at += tag.size() + 1;
    } else if (byte == '>' || (byte == '&' && !is_entity) || (byte < ' ' && byte != '\n')) {
      return ::testing::AssertionFailure() << "bare character at " << at;
    }
  }
  if (!open.empty()) return ::testing::AssertionFailure() << "not closed: " << open.back();
  return ::testing::AssertionSuccess();
}

std::size_t num_elements(const std::string& svg) { return count(svg, "<") - count(svg, "</"); }

std::vector<double> attribute(const std::string& svg, const std::string& name) {
  std::vector<double> values;
  for (const std::string& value : all_between(svg, " " + name + "=\"", "\"")) values.push_back(std::stod(value));
  return values;
}

std::size_t num_spans(const Timeline& timeline) {
  std::size_t number = 0;
  for (const WorkerTimeline& worker : timeline.workers) number += worker.spans.size();
  return number;
}

// The numbers on the bars.
std::vector<int> numbers(const std::string& svg) {
  std::vector<int> out;
  for (const std::string& group : all_between(svg, "<g ", "</g>")) {
    for (const std::string& text : all_between(group, "<text ", "</text>")) {
      out.push_back(std::stoi(text.substr(text.find('>') + 1)));
    }
  }
  return out;
}

// Of the bars whose tooltip begins with this.
std::set<std::string> fills(const std::string& svg, const std::string& tooltip) {
  std::set<std::string> out;
  for (const std::string& bar : all_between(svg, "<rect ", "/")) {
    if (bar.find("<title>" + tooltip) != std::string::npos) out.insert(all_between(bar, "fill=\"", "\"").at(0));
  }
  return out;
}

TEST(Svg, IsWellFormed) {
  for (const Timeline& timeline :
       {Timeline{}, one_f_one_b_timeline(4, 8), gpipe_timeline(4, 8), zero_bubble_timeline(4, 8, {1e-9, 1e-9}),
        two_chunk_timeline(4, 4, {1e6}), one_f_one_b_timeline(8, 400), one_f_one_b_timeline(1, 1, {0})}) {
    EXPECT_TRUE(is_well_formed(to_svg(timeline)));
  }
}

TEST(Svg, TheCheckForWellFormedXmlCanFail) {
  EXPECT_TRUE(is_well_formed("<a><b x=\"1\"/>&amp;</a>"));
  for (const char* bad : {"<a>", "<a></b>", "<a>&</a>", "<a>\x01</a>", "<a x=1/>", "<a>></a>", "<a x=\"<\"/>"}) {
    EXPECT_FALSE(is_well_formed(bad)) << bad;
  }
}

TEST(Svg, GivesEverySpanARectangleATooltipAndItsNumber) {
  for (const Timeline& timeline : {one_f_one_b_timeline(4, 8), gpipe_timeline(4, 8), zero_bubble_timeline(4, 8)}) {
    const std::string svg = to_svg(timeline);
    EXPECT_EQ(count(svg, "</title></rect>"), num_spans(timeline));
    EXPECT_EQ(numbers(svg).size(), num_spans(timeline));
  }
  const std::string svg = to_svg(one_f_one_b_timeline(4, 8, {1e-3}));
  EXPECT_EQ(count(svg, "<title>backward, stage 2, micro-batch 5: 21 ms to 23 ms, takes 2 ms</title>"), 1u);
}

TEST(Svg, TitleSaysWhatWasRunAndHowWell) {
  const std::string svg = to_svg(two_chunk_timeline(4, 4));
  EXPECT_THAT(svg, HasSubstr(">interleaved</text>"));
  EXPECT_THAT(svg, HasSubstr(">8 stages · 4 workers · 4 micro-batches · makespan 33 s · bubble 27.3%</text>"));
}

TEST(Svg, NumbersAreTheMicroBatches) {
  EXPECT_THAT(numbers(to_svg(one_f_one_b_timeline(1, 3))), ::testing::ElementsAre(0, 0, 1, 1, 2, 2));
}

TEST(Svg, HasNumbersOnAllSpansOrOnNone) {
  for (int num_micro_batches = 1; num_micro_batches <= 80; ++num_micro_batches) {
    const Timeline timeline = one_f_one_b_timeline(4, num_micro_batches);
    const std::string svg = to_svg(timeline);
    const std::size_t num_numbers = numbers(svg).size();
    EXPECT_TRUE(num_numbers == 0 || num_numbers == num_spans(timeline)) << num_micro_batches << ": " << num_numbers;
    EXPECT_EQ(count(svg, ">number: micro-batch</text>"), num_numbers == 0 ? 0u : 1u) << num_micro_batches;
  }
}

TEST(Svg, ASpanThatTakesNoTimeLeavesTheOthersTheirNumbers) {
  Timeline timeline = one_f_one_b_timeline(1, 3);
  timeline.workers[0].spans[0].end_seconds = timeline.workers[0].spans[0].start_seconds;
  EXPECT_EQ(numbers(to_svg(timeline)).size(), 5u);
  timeline.workers[0].spans[1].end_seconds = timeline.workers[0].spans[1].start_seconds + 1e-3;
  EXPECT_EQ(numbers(to_svg(timeline)).size(), 0u);
}

TEST(Svg, TheLegendExplainsWhatNarrowSpansAreMergedInto) {
  const char* caption = "colours above each other: several narrow spans";
  EXPECT_THAT(to_svg(long_timeline(1, 300000)), HasSubstr(caption));
  EXPECT_THAT(to_svg(one_f_one_b_timeline(4, 8)), Not(HasSubstr(caption)));
}

TEST(Svg, ALongLegendGoesOnInTheNextLine) {
  ActionLists lists = {{{F, 0, 0}, {F, 1, 0}, {R, 1, 0}, {B, 1, 0}, {I, 0, 0}, {W, 0, 0}}};
  Timeline timeline = run("all", lists, {1, 1});
  timeline.critical_path = {{0, 0}};
  timeline.workers[0].spans.back().start_seconds = timeline.workers[0].spans.back().end_seconds - 1e-3;
  const std::string svg = to_svg(timeline);
  EXPECT_THAT(svg, HasSubstr("several narrow spans"));
  double most = 0;
  for (const std::string& text : all_between(svg, "<text x=", "</text>")) {
    const std::size_t words = text.find('>') + 1;
    most = std::max(most, std::stod(text.substr(1)) + 6.6 * static_cast<double>(text.size() - words));
  }
  EXPECT_LE(most, 1200);
  const std::vector<double> heights = attribute(svg, "height");
  for (const double y : attribute(svg, "y")) EXPECT_LE(y + 12, heights.front());
}

TEST(Svg, KindsDifferInColour) {
  const std::string recomputed = to_svg(gpipe_timeline(2, 3));
  const std::string split = to_svg(zero_bubble_timeline(2, 3, {1, 1}));
  std::set<std::string> colours;
  for (const char* kind : {"forward,", "recompute,", "backward,"}) colours.merge(fills(recomputed, kind));
  for (const char* kind : {"input gradient,", "weight gradient,", "update:"}) colours.merge(fills(split, kind));
  EXPECT_EQ(colours.size(), 6u);
}

TEST(Svg, ChunksOfAWorkerDifferInShade) {
  const std::string svg = to_svg(two_chunk_timeline(2, 2));
  EXPECT_EQ(fills(svg, "forward").size(), 2u);
  EXPECT_EQ(fills(svg, "forward, stage 0"), fills(svg, "forward, stage 1"));
  EXPECT_EQ(fills(svg, "forward, stage 2"), fills(svg, "forward, stage 3"));
  EXPECT_EQ(fills(to_svg(one_f_one_b_timeline(4, 2)), "forward").size(), 1u);
}

TEST(Svg, ManyChunksShareTheShadesThereAre) {
  ActionLists lists(1);
  for (int stage = 0; stage < 20; ++stage) lists[0].push_back({F, stage, 0});
  EXPECT_EQ(fills(to_svg(run("deep", lists)), "forward").size(), 6u);
}

TEST(Svg, OutlinesTheCriticalPathAndNothingElse) {
  Timeline timeline = one_f_one_b_timeline(4, 8);
  EXPECT_EQ(count(to_svg(timeline), "stroke-opacity"), 0u);
  timeline.critical_path = {{0, 0}, {1, 0}, {1, 1000}, {9, 0}, {-1, 0}, {0, -1}};
  EXPECT_EQ(count(to_svg(timeline), "stroke-opacity"), 2u + 1);  // and the legend
}

TEST(Svg, ShowsTheOptimizerStep) {
  EXPECT_EQ(count(to_svg(one_f_one_b_timeline(3, 2, {1, 0.5})), "<title>update: "), 3u);
  EXPECT_THAT(to_svg(one_f_one_b_timeline(3, 2)), Not(HasSubstr("update")));
}

TEST(Svg, KeepsEverythingInsideThePicture) {
  Timeline timeline = one_f_one_b_timeline(2, 2, {1, 1});
  const double infinity = std::numeric_limits<double>::infinity();
  timeline.workers[0].spans[0].start_seconds = -infinity;
  timeline.workers[1].spans.back().end_seconds = infinity;
  timeline.workers[1].spans[0].start_seconds = std::nan("");
  const std::string svg = to_svg(timeline);
  EXPECT_TRUE(is_well_formed(svg));
  for (const double x : attribute(svg, "x")) EXPECT_TRUE(x >= 0 && x <= 1200) << x;
  for (const double width : attribute(svg, "width")) EXPECT_TRUE(width >= 0 && width <= 1200) << width;
  EXPECT_THAT(svg, Not(HasSubstr("=\"nan")));
}

TEST(Svg, SizeIsBoundedForAMillionSpans) {
  for (const int num_workers : {1, 8, 1000}) {
    const Timeline timeline = long_timeline(num_workers, 1000000 / num_workers);
    const std::string svg = to_svg(timeline);
    EXPECT_TRUE(is_well_formed(svg));
    EXPECT_LT(num_elements(svg), 4000u * static_cast<unsigned>(num_workers));
    EXPECT_LT(svg.size(), 16u << 20);
    EXPECT_GE(count(svg, "narrow spans</title>"), static_cast<unsigned>(num_workers));
  }
}

TEST(Svg, LowBarsStillHaveAHeight) {
  Timeline timeline = long_timeline(1000, 2);
  timeline.critical_path = {{0, 0}, {1, 1}};
  const std::string svg = to_svg(timeline);
  EXPECT_EQ(count(svg, "stroke-opacity"), 2u + 1);
  for (const double height : attribute(svg, "height")) EXPECT_GT(height, 0);
}

TEST(Svg, ManyRowsShareTheRectangles) {
  const std::string svg = to_svg(long_timeline(1000, 300));  // spans of several pixels
  EXPECT_LT(count(svg, "<rect "), 41100u);
  EXPECT_LT(svg.size(), 16u << 20);
}

TEST(Svg, StacksKeepClearOfTheBarBetweenThem) {
  Timeline timeline = one_f_one_b_timeline(1, 2);
  timeline.makespan_seconds = 1020;  // a pixel a second
  timeline.workers[0].spans = {{{F, 0, 0}, 10, 11}, {{B, 0, 0}, 11, 14}, {{F, 0, 1}, 14, 15}};
  const std::string svg = to_svg(timeline);
  EXPECT_EQ(count(svg, "<title>backward"), 1u);
  const std::vector<std::string> paths = all_between(svg, "<path ", ">");
  ASSERT_EQ(paths.size(), 1u);
  EXPECT_THAT(all_between(paths[0], "M", " "), ::testing::ElementsAre("114", "118"));
  EXPECT_EQ(count(paths[0], "h1v"), 2u);
}

TEST(Svg, StacksOfNarrowSpansKeepTheProportions) {
  const std::string svg = to_svg(long_timeline(1, 300000));
  const std::vector<std::string> paths = all_between(svg, "<path ", ">");
  ASSERT_EQ(paths.size(), 2u);
  double area[2] = {};
  for (const int kind : {0, 1}) {
    for (const std::string& piece : all_between(paths[kind], "h", "h")) {  // "<width>v<height>"
      const std::size_t v = piece.find('v');
      if (v != std::string::npos) area[kind] += std::stod(piece) * std::stod(piece.substr(v + 1));
    }
  }
  EXPECT_NEAR(area[0] / (area[0] + area[1]), 1.0 / 3, 0.01);
  EXPECT_NEAR(area[0] + area[1], 1020 * 34 * 0.82, 300);
}

TEST(Svg, HostileNamesAreEscaped) {
  Timeline timeline = one_f_one_b_timeline(2, 2);
  timeline.name = "</text><script>\"'&\x01\x1b\xff\xc3(\xef\xbf\xbe\xed\xa0\x80 caf\xc3\xa9";
  const std::string svg = to_svg(timeline);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(svg, HasSubstr("&lt;/text&gt;&lt;script&gt;\"'&amp;"));
  EXPECT_THAT(svg, HasSubstr("caf\xc3\xa9"));
  for (const char* bad : {"\xff", "\xc3(", "\xef\xbf\xbe", "\xed\xa0\x80", "\x01"})
    EXPECT_THAT(svg, Not(HasSubstr(bad)));
}

TEST(Svg, RefersToNothingOutside) {
  const std::string svg = to_svg(one_f_one_b_timeline(4, 8));
  EXPECT_EQ(count(svg, "http"), 1u);  // the namespace
  for (const char* word : {"href", "url(", "@import", "<script", "<image"}) EXPECT_THAT(svg, Not(HasSubstr(word)));
}

}  // namespace
}  // namespace gpipe::test
