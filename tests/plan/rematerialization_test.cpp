// What a rematerialization costs, counted by hand, and its text form.
#include "gpipe/plan/rematerialization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>

#include "gpipe/error.h"
#include "gpipe/plan/checked_rematerialization.h"

namespace gpipe {
namespace {

using detail::check_rematerialization;
using ::testing::HasSubstr;

constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

// Forward 1, 2, 4, ... seconds, backward twice as long; 10 bytes kept, 3 sent on, 12 live at work.
std::vector<RematerializationCosts> chain(int num_layers) {
  std::vector<RematerializationCosts> costs;
  for (int layer = 0; layer < num_layers; ++layer) costs.push_back({1.0 * (1 << layer), 2.0 * (1 << layer), 10, 3, 12});
  return costs;
}

TEST(Rematerialization, WithoutRunsEveryLayerKeepsItsActivations) {
  const RematerializationOutcome outcome = evaluate(chain(4), {});
  EXPECT_EQ(outcome.seconds, 15 + 30);
  EXPECT_EQ(outcome.recompute_seconds, 0);
  EXPECT_EQ(outcome.kept_bytes, 40);
  EXPECT_EQ(outcome.peak_bytes, 30 + 12);
}

TEST(Rematerialization, ARunKeepsItsInputAndIsForwardedAgain) {
  const RematerializationOutcome outcome = evaluate(chain(4), {{1, 3}});
  EXPECT_EQ(outcome.recompute_seconds, 2 + 4);
  EXPECT_EQ(outcome.seconds, 15 + 6 + 30);
  EXPECT_EQ(outcome.kept_bytes, 10 + 3 + 10);
  EXPECT_EQ(outcome.peak_bytes, 10 + 3 + 10 + 12);  // layer 2, again
}

TEST(Rematerialization, ARunAtTheBeginningLeavesItsInputToTheCaller) {
  const RematerializationOutcome outcome = evaluate(chain(3), {{0, 3}});
  EXPECT_EQ(outcome.kept_bytes, 0);
  EXPECT_EQ(outcome.peak_bytes, 20 + 12);
  EXPECT_EQ(outcome.recompute_seconds, 7);
}

TEST(Rematerialization, NestedRunsAreForwardedAThirdTime) {
  const RematerializationOutcome outcome = evaluate(chain(5), parse_rematerialization("1-3{1-2}"));
  EXPECT_EQ(outcome.recompute_seconds, (2 + 4 + 8) + (2 + 4));
  EXPECT_EQ(outcome.kept_bytes, 10 + 3 + 10);
  EXPECT_EQ(outcome.peak_bytes, 10 + 3 + 10 + 12);  // layer 2 the third time; the input of 1-2 is that of 1-3
  EXPECT_EQ(evaluate(chain(5), parse_rematerialization("1-3{2-3}")).peak_bytes, 10 + 3 + 10 + 3 + 10 + 12);
}

TEST(Rematerialization, AGradientWaitsWhileItsRunIsForwardedAgain) {
  std::vector<RematerializationCosts> costs = chain(3);
  costs[1].output_grad_bytes = 100;
  EXPECT_EQ(evaluate(costs, {}).peak_bytes, 20 + 12);
  EXPECT_EQ(evaluate(costs, {{1, 3}}).peak_bytes, 10 + 3 + 10 + 12);
  EXPECT_EQ(evaluate(costs, {{0, 2}}).peak_bytes,
            100 + 10 + 12);  // not with the 10 of layer 2, which are freed by then
}

TEST(Rematerialization, WorkingBytesBelowTheActivationsCountAsThem) {
  std::vector<RematerializationCosts> costs = chain(2);
  for (RematerializationCosts& layer : costs) layer.working_bytes = 0;
  EXPECT_EQ(evaluate(costs, {}).peak_bytes, 20);
}

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Rematerialization, RefusesCostsThatCannotBe) {
  const auto with = [](auto change) {
    std::vector<RematerializationCosts> costs = chain(3);
    change(costs[1]);
    return refusal([&] { evaluate(costs, {}); });
  };
  EXPECT_THAT(refusal([] { evaluate({}, {}); }), HasSubstr("no layers"));
  EXPECT_THAT(with([](auto& layer) { layer.forward_seconds = -1; }), HasSubstr("layer 1 takes -1 seconds"));
  EXPECT_THAT(with([](auto& layer) { layer.backward_seconds = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("layer 1 takes nan seconds"));
  EXPECT_THAT(with([](auto& layer) { layer.output_bytes = -5; }), HasSubstr("layer 1 has -5 bytes"));
  EXPECT_THAT(with([](auto& layer) { layer.working_bytes = kMaxBytes; }), HasSubstr("layers 0 to 1 add up to 2^63"));
}

TEST(Rematerialization, RefusesRunsThatAreNotOfTheChain) {
  const auto with = [](const Rematerialization& runs) { return refusal([&] { evaluate(chain(4), runs); }); };
  EXPECT_THAT(with({{1, 5}}), HasSubstr("[1, 5)"));
  EXPECT_THAT(with({{-1, 2}}), HasSubstr("[-1, 2)"));
  EXPECT_THAT(with({{2, 2}}), HasSubstr("[2, 2)"));
  EXPECT_THAT(with({{0, 2}, {1, 3}}), HasSubstr("[1, 3)"));
  EXPECT_THAT(with({{0, 2, {{1, 3}}}}), HasSubstr("[1, 3)"));
  EXPECT_THAT(with({{0, 2, {{0, 2}}}}), HasSubstr("same layers"));
}

TEST(RematerializationText, IsFirstAndLastLayerOfEachRun) {
  EXPECT_EQ(to_text({}), "");
  EXPECT_EQ(to_text({{1, 4, {{1, 3}}}, {5, 7}}), "1-3{1-2},5-6");
  EXPECT_EQ(parse_rematerialization("1-3{1-2},5-6"), (Rematerialization{{1, 4, {{1, 3}}}, {5, 7}}));
  EXPECT_EQ(parse_rematerialization(""), Rematerialization{});
  EXPECT_NE(parse_rematerialization("1-3{1-2}"), parse_rematerialization("1-3{2-3}"));
}

std::vector<RematerializedRun> random_runs(int begin, int end, bool is_nested, std::mt19937& random) {
  std::vector<RematerializedRun> runs;
  for (int layer = begin; layer < end;) {
    const int run_end = layer + 1 + static_cast<int>(random() % static_cast<unsigned>(end - layer));
    const bool is_all = is_nested && layer == begin && run_end == end;
    if (random() % 2 == 0 && !is_all) runs.push_back({layer, run_end, random_runs(layer, run_end, true, random)});
    layer = run_end;
  }
  return runs;
}

TEST(RematerializationText, GoesBothWays) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const Rematerialization runs = random_runs(0, 1 + trial % 40, false, random);
    EXPECT_NO_THROW(check_rematerialization(runs, 40));
    EXPECT_EQ(parse_rematerialization(to_text(runs)), runs) << to_text(runs);
  }
}

TEST(RematerializationText, RefusesAnythingElse) {
  for (const char* text : {"1",
                           " ",
                           "1-",
                           "-1",
                           "1-2,",
                           ",1-2",
                           "1-2 ",
                           "1-2,2-3",
                           "3-4,1-2",
                           "2-1",
                           "1-2{}",
                           "1-2{1-1",
                           "1-2}",
                           "1-3{0-2}",
                           "1-3{2-4}",
                           "1-3{1-3}",
                           "1-3{1-2,2-3}",
                           "1-2{{1-1}}",
                           "0x1-2",
                           "01-2",
                           "1-2;3-4",
                           "1--2",
                           "1-2147483647",
                           "1-99999999999999999999",
                           "1-2\n",
                           "a-b",
                           "1-2{1-1}{1-1}",
                           "1-3{1-1}4-5",
                           "\xff\xfe"}) {
    EXPECT_THROW(parse_rematerialization(text), ParseError) << text;
  }
  EXPECT_THROW(parse_rematerialization(std::string("1-2\0", 4)), ParseError);
}

TEST(RematerializationText, ErrorsNameTheColumn) {
  try {
    parse_rematerialization("1-3{1-2},2-6");
    FAIL() << "not refused";
  } catch (const ParseError& error) {
    EXPECT_EQ(error.line(), 1);
    EXPECT_EQ(error.column(), 10);
    EXPECT_THAT(error.what(), HasSubstr("column 10: a run begins before the one in front of it ends"));
  }
}

TEST(RematerializationText, RunsThatAreNestedTooDeepAreRefusedBeforeTheStackEnds) {
  std::string text;
  for (int layer = 1'000'000; layer > 0; --layer) text += "0-" + std::to_string(layer) + "{";
  EXPECT_THROW(parse_rematerialization(text), ParseError);
}

TEST(RematerializationText, AnyEditIsParsedOrRefused) {
  std::mt19937 random(2);
  const std::string letters = "0123456789-,{}x";
  int num_parsed = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text = "1-9{1-4{2-3},6-7},11-12";
    for (int edit = 0; edit < 1 + trial % 3; ++edit) {
      text[random() % text.size()] = letters[random() % letters.size()];
    }
    try {
      const Rematerialization runs = parse_rematerialization(text);
      check_rematerialization(runs, std::numeric_limits<int>::max());
      EXPECT_EQ(to_text(runs), text);
      ++num_parsed;
    } catch (const ParseError&) {
    }
  }
  EXPECT_GT(num_parsed, 1000);
}

}  // namespace
}  // namespace gpipe
