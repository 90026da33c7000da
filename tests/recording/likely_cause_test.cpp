// From recordings to what differs first, and why.
#include "gpipe/recording/likely_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace gpipe::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TensorRecord crossing(RecordKind kind, int layer, int micro_batch, const std::string& hash, int stage = 0) {
  TensorRecord record;
  record.kind = kind;
  record.stage = stage;
  record.layer = layer;
  record.micro_batch = micro_batch;
  record.hash = hash;
  return record;
}

TensorRecord of_step(RecordKind kind, const std::string& name, const std::string& hash, double norm = 1) {
  TensorRecord record;
  record.kind = kind;
  record.name = name;
  record.hash = hash;
  record.norm = norm;
  return record;
}

// Of one step of three layers, "a", "b" and "c", on one micro-batch.
RecordedPipeline pipeline(std::vector<TensorRecord> tensors) {
  Recording recording;
  recording.header.layers = {{"a", "Linear"}, {"b", "Tanh"}, {"c", "Linear"}};
  recording.tensors = std::move(tensors);
  recording.num_steps = 1;
  return {0, 0, {recording}};
}

std::vector<TensorRecord> whole_step() {
  return {of_step(RecordKind::kWeight, "a.weight", "w"),
          crossing(RecordKind::kEntered, 0, 0, "x"),
          crossing(RecordKind::kLeft, 0, 0, "y0"),
          crossing(RecordKind::kLeft, 1, 0, "y1"),
          crossing(RecordKind::kLeft, 2, 0, "y2"),
          crossing(RecordKind::kLeft, 3, 0, "l"),
          of_step(RecordKind::kLoss, "", "L"),
          of_step(RecordKind::kGradient, "a.weight", "g"),
          of_step(RecordKind::kBuffer, "b.running_mean", "m")};
}

// The step with that record in another way, and everything behind it.
VerifyFinding finding_if_changed(std::size_t first) {
  std::vector<TensorRecord> changed = whole_step();
  for (std::size_t index = first; index < changed.size(); ++index) changed[index].hash += "'";
  std::reverse(changed.begin(), changed.end());
  const RecordedPipeline other = pipeline(changed);
  const auto difference = first_difference(pipeline(whole_step()), other);
  return explain(difference.value(), other, {"a run", false, nullptr});
}

TEST(FirstDifference, IsTheOneThatTheOthersFollowFrom) {
  EXPECT_FALSE(first_difference(pipeline(whole_step()), pipeline(whole_step())));
  EXPECT_EQ(finding_if_changed(0).cause, LikelyCause::kUnseededWeights);
  EXPECT_EQ(finding_if_changed(1).cause, LikelyCause::kUnseededData);
  EXPECT_EQ(finding_if_changed(3).tensor, "what layer 1 (b, Tanh) returned");
  EXPECT_EQ(finding_if_changed(5).tensor, "what the loss function returned");
  EXPECT_EQ(finding_if_changed(6).cause, LikelyCause::kOrderOfAdditions);
  EXPECT_EQ(finding_if_changed(7).tensor, "gradient a.weight");
  EXPECT_EQ(finding_if_changed(8).cause, LikelyCause::kBatchStatistics);
}

TEST(FirstDifference, ComparesWhatCameToAStageWithWhatTheLayerBeforeReturned) {
  std::vector<TensorRecord> tensors = whole_step();
  tensors.push_back(crossing(RecordKind::kEntered, 2, 0, "y1", 1));
  EXPECT_FALSE(first_difference(pipeline(whole_step()), pipeline(tensors)));
  tensors.back().hash = "something else";
  const RecordedPipeline other = pipeline(tensors);
  const VerifyFinding finding =
      explain(first_difference(pipeline(whole_step()), other).value(), other, {"a run", false, nullptr});
  EXPECT_EQ(finding.cause, LikelyCause::kRace);
  EXPECT_EQ(finding.tensor, "what layer 1 (b, Tanh) returned, on its way to layer 2 (c, Linear)");
  EXPECT_EQ(finding.layer, "layer 1 (b, Tanh)");
  EXPECT_EQ(finding.stage, 1);
}

TEST(FirstDifference, ComparesARecomputeWithTheForward) {
  std::vector<TensorRecord> tensors = whole_step();
  tensors.push_back(crossing(RecordKind::kRecomputed, 1, 0, "y1"));
  EXPECT_FALSE(first_difference(pipeline(whole_step()), pipeline(tensors)));
  tensors.back().hash = "something else";
  EXPECT_EQ(first_difference(pipeline(whole_step()), pipeline(tensors))->kind, RecordKind::kRecomputed);
}

TEST(FirstDifference, AGradientThatIsMissingIsOne) {
  std::vector<TensorRecord> tensors = whole_step();
  tensors.erase(tensors.begin() + 7);
  const auto difference = first_difference(pipeline(whole_step()), pipeline(tensors));
  ASSERT_TRUE(difference);
  EXPECT_TRUE(difference->is_missing);
  // But what only the other has, is none.
  EXPECT_FALSE(first_difference(pipeline(tensors), pipeline(whole_step())));
}

TEST(FirstDifference, NormsMayDifferByRoundingOnly) {
  const auto with_gradients = [](double large, double small) {
    return pipeline(
        {of_step(RecordKind::kGradient, "a.weight", "x", large), of_step(RecordKind::kGradient, "b.bias", "y", small)});
  };
  EXPECT_FALSE(first_distant(with_gradients(1, 1e-9), with_gradients(1.00001, 3e-9), 1e-3));
  EXPECT_TRUE(first_distant(with_gradients(1, 1e-9), with_gradients(2, 1e-9), 1e-3));
  EXPECT_TRUE(first_distant(with_gradients(1, 0.1), with_gradients(1, 0.2), 1e-3));
  EXPECT_TRUE(first_distant(with_gradients(1, 0.1), with_gradients(NAN, 0.1), 1e-3));
}

Probe probe_of(double (*output)(int call)) {
  Probe probe;
  for (int call = 0; call < kProbeCalls; ++call) {
    const double sum = output(call);
    probe.calls.push_back({std::to_string(sum), sum});
  }
  return probe;
}

TEST(LikelyCause, ProbesTellGeneratorsFromStatesAndClocks) {
  EXPECT_EQ(cause_of(probe_of([](int) { return 1.0; })), LikelyCause::kRace);
  EXPECT_EQ(cause_of(probe_of([](int call) { return 10.0 + call; })), LikelyCause::kHiddenState);
  EXPECT_EQ(cause_of(probe_of([](int call) { return call % 3 == 0 ? 2.0 : 1.0; })), LikelyCause::kHiddenState);
  EXPECT_EQ(cause_of(probe_of([](int call) { return call * 1e-4 + (call < kProbeCalls / 2 ? 0 : 1); })),
            LikelyCause::kClock);
  EXPECT_EQ(cause_of(probe_of([](int call) { return static_cast<double>(std::mt19937(call + 1)() % 1000); })),
            LikelyCause::kOwnGenerator);
  Probe drew = probe_of([](int) { return 1.0; });
  drew.has_own_generator = true;
  EXPECT_EQ(cause_of(drew), LikelyCause::kOwnGenerator);
  Probe failed;
  failed.problem = "no skip";
  EXPECT_EQ(cause_of(failed), LikelyCause::kUnknown);
}

TEST(LikelyCause, ReplicasWithBatchStatisticsOfTheirOwnAreNamed) {
  std::vector<TensorRecord> other = whole_step();
  for (TensorRecord& record : other) {
    if (record.micro_batch >= 0) record.hash += " of other rows";
  }
  EXPECT_FALSE(explain_copies(pipeline(whole_step()), pipeline(other), "replicas"));
  other.back().hash = "other statistics";
  const auto finding = explain_copies(pipeline(whole_step()), pipeline(other), "replicas");
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->cause, LikelyCause::kBatchStatistics);
  EXPECT_EQ(finding->tensor, "buffer b.running_mean");
}

TEST(LikelyCause, ALossThatIsNotTheSumOfItsPartsIsNamedAndRoundingIsNot) {
  const auto findings = [](double of_parts, double of_whole, const std::string& type) {
    RecordedPipeline recorded = pipeline(whole_step());
    recorded.ranks[0].losses.push_back({0, of_parts, of_whole, type});
    return findings_in({{recorded}}, "the reference");
  };
  EXPECT_THAT(findings(1, 1 + 1e-12, "Double"), IsEmpty());
  EXPECT_THAT(findings(1, 1 + 1e-5, "Float"), IsEmpty());
  EXPECT_THAT(findings(1, 1 + 1e-3, "BFloat16"), IsEmpty());
  EXPECT_THAT(findings(NAN, NAN, "Double"), IsEmpty());
  for (const auto& found : {findings(1, 1.001, "Double"), findings(1, 1.01, "Float"), findings(NAN, 1, "Double")}) {
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].cause, LikelyCause::kLossIsNoMean);
  }
}

TEST(LikelyCause, EachHasANameADescriptionAndARemedy) {
  std::vector<std::string> names;
  for (int cause = 0; cause < kNumLikelyCauses; ++cause) {
    names.emplace_back(name(static_cast<LikelyCause>(cause)));
    EXPECT_STRNE(description(static_cast<LikelyCause>(cause)), "");
    EXPECT_STRNE(remedy(static_cast<LikelyCause>(cause)), "");
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(Verification, NothingThatWasComparedIsNoProof) {
  Verification verification;
  const auto add = [&](VerifyOutcome outcome) {
    verification.runs.emplace_back();
    verification.runs.back().outcome = outcome;
  };
  EXPECT_FALSE(verification.is_verified());
  add(VerifyOutcome::kSame);
  EXPECT_TRUE(verification.is_verified());
  add(VerifyOutcome::kNotPossible);
  EXPECT_TRUE(verification.is_verified());
  add(VerifyOutcome::kFailed);
  EXPECT_FALSE(verification.is_verified());
}

}  // namespace
}  // namespace gpipe::detail
