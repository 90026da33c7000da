#include "gpipe/report/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "timelines.h"

namespace gpipe::test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

std::vector<json> events(const Timeline& timeline, const std::string& phase) {
  const json trace = json::parse(to_chrome_trace(timeline));
  std::vector<json> out;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) out.push_back(event);
  }
  return out;
}

struct Arrow {
  json from;  // slices
  json to;
};

// The one slice of the event's thread with the event strictly inside.
json slice_around(const std::vector<json>& slices, const json& event) {
  json found;
  for (const json& slice : slices) {
    const double begin = slice.at("ts");
    const double end = begin + slice.at("dur").get<double>();
    const double at = event.at("ts");
    if (slice.at("tid") != event.at("tid") || !(begin < at && at < end)) continue;
    EXPECT_TRUE(found.is_null()) << "two slices around " << event;
    found = slice;
  }
  EXPECT_FALSE(found.is_null()) << "no slice around " << event;
  return found;
}

std::vector<Arrow> arrows(const Timeline& timeline) {
  const std::vector<json> slices = events(timeline, "X");
  const std::vector<json> starts = events(timeline, "s");
  const std::vector<json> finishes = events(timeline, "f");
  EXPECT_EQ(starts.size(), finishes.size());
  std::map<std::int64_t, json> finish_of;
  for (const json& finish : finishes) {
    EXPECT_EQ(finish.at("bp"), "e");
    EXPECT_TRUE(finish_of.emplace(finish.at("id"), finish).second) << "id used twice: " << finish;
  }
  std::set<std::int64_t> ids;
  std::vector<Arrow> out;
  for (const json& start : starts) {
    EXPECT_TRUE(ids.insert(start.at("id").get<std::int64_t>()).second) << "id used twice: " << start;
    const json finish = finish_of.at(start.at("id"));
    EXPECT_EQ(start.at("cat"), finish.at("cat"));
    EXPECT_EQ(start.at("name"), finish.at("name"));
    EXPECT_LE(start.at("ts").get<double>(), finish.at("ts").get<double>());
    out.push_back({slice_around(slices, start), slice_around(slices, finish)});
  }
  return out;
}

// "F0@1": label and stage; the optimizer step has no stage.
std::string describe(const json& slice) {
  const std::string name = slice.at("name");
  return name == "U" ? "U" : name + "@" + std::to_string(slice.at("args").at("stage").get<int>());
}

std::vector<std::string> described_arrows(const Timeline& timeline) {
  std::vector<std::string> out;
  for (const Arrow& arrow : arrows(timeline)) out.push_back(describe(arrow.from) + ">" + describe(arrow.to));
  return out;
}

TEST(ChromeTrace, HasASliceForEverySpanAtItsTime) {
  const Timeline timeline = gpipe_timeline(3, 4, {0.5e-6});
  const std::vector<json> slices = events(timeline, "X");
  std::size_t next = 0;
  for (int worker = 0; worker < timeline.num_workers(); ++worker) {
    for (const Span& span : timeline.workers[worker].spans) {
      const json& slice = slices.at(next++);
      EXPECT_EQ(slice.at("tid"), worker);
      EXPECT_EQ(slice.at("name"), letter(span.action.kind) + std::to_string(span.action.micro_batch));
      EXPECT_EQ(slice.at("cat"), name(span.action.kind));
      EXPECT_EQ(slice.at("args"), (json{{"stage", span.action.stage}, {"micro_batch", span.action.micro_batch}}));
      EXPECT_DOUBLE_EQ(slice.at("ts"), span.start_seconds * 1e6);
      EXPECT_DOUBLE_EQ(slice.at("dur"), (span.end_seconds - span.start_seconds) * 1e6);
    }
  }
  EXPECT_EQ(slices.size(), next);
}

TEST(ChromeTrace, KeepsTimesBelowAMicrosecond) {
  const Timeline timeline = one_f_one_b_timeline(1, 1, {1.25e-9});
  EXPECT_DOUBLE_EQ(events(timeline, "X").at(0).at("dur"), 0.00125);
  EXPECT_DOUBLE_EQ(events(timeline, "X").at(1).at("ts"), 0.00125);
}

TEST(ChromeTrace, SlicesOfAWorkerNeverOverlap) {
  for (const double unit : {0.1, 1.0 / 3, 1e-7 / 3, 123456.789}) {
    std::map<int, double> end_of;
    for (const json& slice : events(one_f_one_b_timeline(4, 50, {unit}), "X")) {
      const int worker = slice.at("tid");
      const double begin = slice.at("ts");
      EXPECT_GE(begin, end_of[worker] * (1 - 1e-15));
      end_of[worker] = begin + slice.at("dur").get<double>();
    }
    EXPECT_EQ(end_of.size(), 4u);
  }
}

TEST(ChromeTrace, NamesAndOrdersTheWorkers) {
  std::map<int, std::string> name_of;
  std::map<int, int> place_of;
  std::string process_name;
  for (const json& event : events(one_f_one_b_timeline(3, 2), "M")) {
    if (event.at("name") == "thread_name") name_of[event.at("tid")] = event.at("args").at("name");
    if (event.at("name") == "thread_sort_index") place_of[event.at("tid")] = event.at("args").at("sort_index");
    if (event.at("name") == "process_name") process_name = event.at("args").at("name");
  }
  EXPECT_EQ(process_name, "1f1b");
  EXPECT_EQ(name_of, (std::map<int, std::string>{{0, "worker 0"}, {1, "worker 1"}, {2, "worker 2"}}));
  EXPECT_EQ(place_of, (std::map<int, int>{{0, 0}, {1, 1}, {2, 2}}));
}

TEST(ChromeTrace, DrawsAnArrowForEveryMessage) {
  EXPECT_THAT(described_arrows(one_f_one_b_timeline(2, 2)),
              ElementsAre("F0@0>F0@1", "F1@0>F1@1", "B0@1>B0@0", "B1@1>B1@0"));
  EXPECT_EQ(arrows(one_f_one_b_timeline(4, 8)).size(), 2u * 3 * 8);
  EXPECT_EQ(arrows(gpipe_timeline(5, 3)).size(), 2u * 4 * 3);
  EXPECT_EQ(arrows(two_chunk_timeline(4, 4, {1e-6})).size(), 2u * 7 * 4);
}

TEST(ChromeTrace, GradientsOfASplitBackwardLeaveTheInputGradient) {
  EXPECT_THAT(described_arrows(zero_bubble_timeline(2, 2, {1e-9})),
              ElementsAre("F0@0>F0@1", "F1@0>F1@1", "I0@1>I0@0", "I1@1>I1@0"));
}

TEST(ChromeTrace, DrawsSkipsBothWays) {
  Timeline timeline = one_f_one_b_timeline(3, 2);
  timeline.flows = {{FlowKind::kSkip, 0, 2}, {FlowKind::kSkipGradient, 2, 0}};
  EXPECT_THAT(described_arrows(timeline), ElementsAre("F0@0>F0@2", "F1@0>F1@2", "B0@2>B0@0", "B1@2>B1@0"));
}

TEST(ChromeTrace, DrawsATieOnceFromTheLastWeightGradientToTheOptimizerStep) {
  Timeline whole = one_f_one_b_timeline(3, 2, {1, 1});
  whole.workers[0].update_start_seconds += 1;
  whole.workers[0].update_end_seconds += 1;
  whole.flows = {{FlowKind::kTie, 2, 0}};
  EXPECT_THAT(described_arrows(whole), ElementsAre("B1@2>U"));
  EXPECT_EQ(events(whole, "f").at(0).at("tid"), 0);
  Timeline split = zero_bubble_timeline(3, 2, {1, 1});
  split.flows = {{FlowKind::kTie, 2, 0}};
  EXPECT_THAT(described_arrows(split), ElementsAre("W1@2>U"));
}

TEST(ChromeTrace, ATieWithoutAnOptimizerStepHasNothingToPointAt) {
  Timeline timeline = one_f_one_b_timeline(3, 2);
  timeline.flows = {{FlowKind::kTie, 2, 0}};
  EXPECT_TRUE(arrows(timeline).empty());
}

TEST(ChromeTrace, ArrowsNeedBothEnds) {
  Timeline timeline = one_f_one_b_timeline(2, 3);
  timeline.workers[1].spans.erase(timeline.workers[1].spans.begin());
  timeline.flows = {{FlowKind::kActivation, 0, 1}, {FlowKind::kActivation, 1, 7}, {FlowKind::kGradient, -1, 0}};
  EXPECT_EQ(arrows(timeline).size(), 2u);
}

TEST(ChromeTrace, ShowsTheOptimizerStep) {
  std::vector<std::string> names;
  for (const json& slice : events(one_f_one_b_timeline(2, 1, {1, 0.5}), "X")) names.push_back(slice.at("name"));
  EXPECT_THAT(names, ElementsAre("F0", "B0", "U", "F0", "B0", "U"));
}

TEST(ChromeTrace, NamesTheStageWhereAWorkerHasSeveral) {
  const std::vector<json> slices = events(two_chunk_timeline(2, 1), "X");
  EXPECT_EQ(slices.at(0).at("name"), "0F0");
  EXPECT_EQ(slices.at(1).at("name"), "2F0");
}

TEST(ChromeTrace, HostileNamesGiveValidJson) {
  Timeline timeline = one_f_one_b_timeline(2, 2);
  timeline.name = "\"},{\\ \x01\n\xff\xc3( caf\xc3\xa9";
  const json trace = json::parse(to_chrome_trace(timeline));
  const std::string expected = "\"},{\\ \x01\n\xef\xbf\xbd\xef\xbf\xbd( caf\xc3\xa9";
  EXPECT_EQ(trace.at("otherData").at("schedule"), expected);
  EXPECT_EQ(trace.at("traceEvents").at(0).at("args").at("name"), expected);
}

TEST(ChromeTrace, TimesThatAreNoNumbersGiveValidJson) {
  Timeline timeline = one_f_one_b_timeline(2, 2);
  timeline.makespan_seconds = std::nan("");
  timeline.workers[0].spans[0].start_seconds = -std::numeric_limits<double>::infinity();
  timeline.workers[1].spans[1].end_seconds = 1e300;
  EXPECT_NO_THROW(json::parse(to_chrome_trace(timeline)));
}

TEST(ChromeTrace, AnEmptyTimelineIsATraceWithoutSlices) {
  const json trace = json::parse(to_chrome_trace(Timeline{}));
  EXPECT_EQ(trace.at("displayTimeUnit"), "ns");
  EXPECT_EQ(trace.at("traceEvents").size(), 1u);
}

}  // namespace
}  // namespace gpipe::test
