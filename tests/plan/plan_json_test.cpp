// A plan's JSON: both ways without loss, and every refusal says where and why.
#include "gpipe/plan/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gpipe/error.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Profile model() {
  Profile profile;
  for (int index = 0; index < 8; ++index) {
    LayerProfile layer;
    layer.name = "layer";
    layer.forward_seconds = 0.1 * (index + 1);
    layer.backward_seconds = 1.0 / 3;
    layer.parameter_bytes = 10;
    layer.activation_bytes = 100;
    layer.output_bytes = 20;
    layer.kept_output_bytes = 7;
    layer.forward_working_bytes = 130;
    layer.backward_working_bytes = 140;
    layer.deferred_bytes = 60;
    layer.input_grad_working_bytes = 150;
    layer.weight_grad_working_bytes = 80;
    profile.layers.push_back(layer);
  }
  profile.skips = {{"skip", 0, 7, 50}};
  return profile;
}

Plan plain() {
  PlanOptions options;
  options.num_stages = 2;
  options.num_micro_batches = 4;
  return partitioned_plan(model(), options);
}

// Everything that may be there is.
Plan full() {
  PlanOptions options;
  options.num_stages = 2;
  options.num_micro_batches = 4;
  options.schedule = "interleaved";
  options.recompute_by_stage = {Recompute::kNever, Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever};
  options.workers = {{1, std::int64_t{1} << 60, LinkCosts{1.0 / 3, 1e9 / 7}}, {0.7, {}, {}}};
  options.link = {0.001, 1e9 / 3};
  Plan plan = partitioned_plan(model(), options);
  plan.predicted_step_seconds = 1.0 / 7;
  plan.predicted_peak_bytes = {std::int64_t{1} << 60, 3};
  plan.rematerialization.resize(4);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    if (plan.layers_per_stage[stage] == 1) continue;
    plan.rematerialization[stage] = parse_rematerialization("0-1{1-1}");
  }
  return plan;
}

std::string with(const std::string& text, const std::string& old_part, const std::string& new_part) {
  std::string changed = text;
  const std::size_t at = changed.find(old_part);
  EXPECT_NE(at, std::string::npos) << old_part;
  return changed.replace(at, old_part.size(), new_part);
}

std::string refusal(const std::string& json) {
  try {
    parse_plan(json);
  } catch (const ParseError& error) {
    EXPECT_THAT(error.what(), StartsWith("line " + std::to_string(error.line()) + ", column " +
                                         std::to_string(error.column()) + ": "));
    return error.what();
  }
  return "not refused";
}

TEST(PlanJson, ComesBackBitForBit) {
  const Plan plan = full();
  const Plan again = parse_plan(to_json(plan));
  EXPECT_EQ(again.schedule, "interleaved");
  EXPECT_EQ(again.chunks, 2);
  EXPECT_EQ(again.num_workers(), 2);
  EXPECT_EQ(again.num_micro_batches, 4);
  EXPECT_EQ(again.recompute, Recompute::kAuto);
  EXPECT_EQ(again.recompute_by_stage, plan.recompute_by_stage);
  EXPECT_EQ(again.layers_per_stage, plan.layers_per_stage);
  EXPECT_EQ(again.rematerialization, plan.rematerialization);
  EXPECT_EQ(again.predicted_step_seconds, plan.predicted_step_seconds);
  EXPECT_EQ(again.predicted_peak_bytes, plan.predicted_peak_bytes);
  EXPECT_EQ(again.partition.makespan_seconds, plan.partition.makespan_seconds);
  EXPECT_EQ(again.partition.slowest_seconds, plan.partition.slowest_seconds);
  EXPECT_EQ(again.costs.workers, plan.costs.workers);
  EXPECT_EQ(again.costs.link.latency_seconds, 0.001);
  EXPECT_EQ(again.costs.link.bytes_per_second, 1e9 / 3);
  EXPECT_EQ(again.costs.skip_bytes, plan.costs.skip_bytes);
  ASSERT_EQ(again.costs.stages.size(), 4u);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(again.partition.stages[stage].seconds, plan.partition.stages[stage].seconds);
    EXPECT_EQ(again.partition.stages[stage].bytes, plan.partition.stages[stage].bytes);
    EXPECT_EQ(again.costs.stages[stage].recompute_seconds, plan.costs.stages[stage].recompute_seconds);
    EXPECT_EQ(again.costs.stages[stage].kept_input_bytes, plan.costs.stages[stage].kept_input_bytes);
    EXPECT_EQ(again.costs.stages[stage].forward_working_bytes, plan.costs.stages[stage].forward_working_bytes);
    EXPECT_EQ(again.costs.stages[stage].backward_working_bytes, plan.costs.stages[stage].backward_working_bytes);
    const SplitBytes& split = *again.costs.stages[stage].split;
    EXPECT_EQ(split.deferred_bytes, plan.costs.stages[stage].split->deferred_bytes);
    EXPECT_EQ(split.input_grad_working_bytes, plan.costs.stages[stage].split->input_grad_working_bytes);
    EXPECT_EQ(split.weight_grad_working_bytes, plan.costs.stages[stage].split->weight_grad_working_bytes);
  }
  EXPECT_EQ(to_json(again), to_json(plan));
  EXPECT_EQ(schedule_of(again), schedule_of(plan));
}

TEST(PlanJson, WhatIsAbsentStaysAbsent) {
  const Plan again = parse_plan(to_json(plain()));
  EXPECT_EQ(again.recompute, Recompute::kNever);
  EXPECT_TRUE(again.recompute_by_stage.empty());
  EXPECT_TRUE(again.rematerialization.empty());
  EXPECT_TRUE(again.predicted_peak_bytes.empty());
  EXPECT_TRUE(again.costs.workers.empty());
  EXPECT_EQ(again.costs.link.bytes_per_second, std::numeric_limits<double>::infinity());
  EXPECT_EQ(to_json(again), to_json(plain()));
}

TEST(PlanJson, WhatASplitBackwardHoldsIsGivenWholeOrNotAtAll) {
  Plan without = plain();
  for (StageCosts& stage : without.costs.stages) stage.split.reset();
  const std::string text = to_json(without);
  EXPECT_EQ(parse_plan(text).costs.stages[0].split, std::nullopt);
  EXPECT_THAT(refusal(with(text, "\"layers\"", "\"deferred_bytes\":3,\"layers\"")),
              HasSubstr("\"input_grad_working_bytes\" is missing, and others that go with it are given"));
}

TEST(PlanJson, SaysWhereAndWhyItIsRefused) {
  const std::string text = to_json(full());
  EXPECT_EQ(refusal(text), "not refused");
  EXPECT_THAT(refusal(with(text, "\"interleaved\"", "\"interleave\"")), HasSubstr("did you mean interleaved?"));
  EXPECT_THAT(refusal(with(text, "\"interleaved\"", "\"1f1b\"")),
              HasSubstr("\"chunks\" is 2; expected 1, as 1f1b has"));
  EXPECT_THAT(refusal(with(text, "\"chunks\": 2", "\"chunks\": 3")), HasSubstr("a divisor of the number of stages, 4"));
  EXPECT_THAT(refusal(with(text, "\"chunks\": 2", "\"chunks\": 1")),
              HasSubstr("\"workers\" has 2 elements; expected 4"));
  EXPECT_THAT(refusal(with(text, "\"num_micro_batches\": 4", "\"num_micro_batches\": 0")),
              HasSubstr("\"num_micro_batches\" is 0; expected a whole number from 1"));
  EXPECT_THAT(refusal(with(text, "\"auto\"", "\"never\"")), HasSubstr("stage 0: \"recompute\" is given"));
  EXPECT_THAT(refusal(with(text, ",\"recompute\":\"never\"", "")), HasSubstr("stage 0: \"recompute\" is missing"));
  EXPECT_THAT(refusal(with(text, "\"except-last\"", "\"auto\"")), HasSubstr("stage 2: \"recompute\" is \"auto\""));
  EXPECT_THAT(refusal(with(text, ",\"rematerialization\":\"\"", "")), HasSubstr("for some stages and not for others"));
  EXPECT_THAT(refusal(with(text, "\"rematerialization\":\"\"", "\"rematerialization\":\"0-\"")),
              AllOf(HasSubstr("\"rematerialization\" is \"0-\"; expected runs of layers"), HasSubstr("column 3")));
  EXPECT_THAT(refusal(with(text, "\"rematerialization\":\"\"", "\"rematerialization\":\"0-9\"")),
              HasSubstr("run of layers [0, 10)"));
  EXPECT_THAT(refusal(with(text, "\"rematerialization\":\"\"", "\"rematerialization\":3")), HasSubstr("a string"));
  EXPECT_THAT(refusal(with(text, "\"speed\":0.7", "\"speed\":0")), HasSubstr("worker 1: \"speed\" is 0"));
  EXPECT_THAT(refusal(with(text, ",\"speed\":0.7", "")), HasSubstr("expected the same of all"));
  EXPECT_THAT(refusal(with(text, "\"speed\":1.0,", "")), HasSubstr("worker 0: \"speed\" is missing"));
  EXPECT_THAT(refusal(with(text, "\"to_stage\":3", "\"to_stage\":4")), HasSubstr("a stage above 0, and at most 3"));
  EXPECT_THAT(refusal(with(text, "\"forward_working_bytes\"", "\"forward_working_byte\"")),
              HasSubstr("did you mean \"forward_working_bytes\"?"));
  EXPECT_THAT(refusal(with(text, "\"skips\"", "\"skip\"")), HasSubstr("unknown field \"skip\""));
  EXPECT_THAT(refusal("{}"), HasSubstr("\"schedule\" is missing"));
  EXPECT_THAT(refusal(""), StartsWith("line 1, column 1: "));
}

TEST(PlanJson, ArbitraryBytesAreParsedOrRefusedAndNothingElse) {
  const std::string seeds[] = {to_json(full()), to_json(plain())};
  const std::string pieces[] = {"[", "]",     "{",    "}",       "\"",   ",", ":",
                                "-", "1e999", "null", "\\ud800", "\xff", "0", "\"auto\""};
  std::mt19937 random(1);
  const auto below = [&](std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random); };
  int parsed = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string text = seeds[below(std::size(seeds))];
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
      const std::size_t at = below(text.size());
      const std::size_t length = below(8) == 0 ? below(text.size() - at) : below(2);
      switch (below(3)) {
        case 0:
          text.replace(at, length, std::string(1, static_cast<char>(below(256))));
          break;
        case 1:
          text.replace(at, length, std::string(1, " 0123456789"[below(11)]));
          break;
        default:
          text.replace(at, length, pieces[below(std::size(pieces))]);
      }
    }
    try {
      const std::string json = to_json(parse_plan(text));
      EXPECT_EQ(to_json(parse_plan(json)), json);
      ++parsed;
    } catch (const ParseError&) {
    }
  }
  EXPECT_GT(parsed, 100);
  EXPECT_LT(parsed, 10000);
}

}  // namespace
}  // namespace gpipe
