// Masks of gpipe::nn::Dropout: what they depend on, and what they do not.
#include "gpipe/model/dropout.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;

LayerRun some_run() {
  LayerRun run;
  run.seed = 17;
  run.step = 3;
  run.layer = 5;
  return run;
}

torch::Tensor run_layer(nn::Dropout& dropout, const torch::Tensor& input, const LayerRun& run) {
  const LayerScope scope(run);
  return dropout->forward(input);
}

// The mini-batch in micro-batches, one after the other.
torch::Tensor run_split(nn::Dropout& dropout, const torch::Tensor& input, int num_micro_batches, int sample_dim = 0) {
  std::vector<torch::Tensor> outputs;
  LayerRun run = some_run();
  for (const torch::Tensor& part : input.tensor_split(num_micro_batches, sample_dim)) {
    outputs.push_back(run_layer(dropout, part, run));
    run.first_sample += part.size(sample_dim);
    ++run.micro_batch;
  }
  return torch::cat(outputs, sample_dim);
}

// Two masks with p = 0.5 agree in about half of the elements, unless they are related.
void expect_unrelated(const torch::Tensor& a, const torch::Tensor& b) {
  EXPECT_NEAR((a == b).to(torch::kDouble).mean().item<double>(), 0.5, 0.05);
}

TEST(DropoutTest, IsBitwiseTheSameForEveryNumberOfMicroBatches) {
  nn::Dropout dropout(0.3);
  const torch::Tensor input = torch::randn({13, 7, 11});
  const torch::Tensor whole = run_split(dropout, input, 1);
  for (const int num_micro_batches : {2, 3, 5, 13}) {
    EXPECT_TRUE(test::same_bits(run_split(dropout, input, num_micro_batches), whole)) << num_micro_batches;
  }
}

TEST(DropoutTest, IsBitwiseTheSameForEveryNumberOfMicroBatchesWhenTheSamplesAreInAnotherDimension) {
  nn::Dropout dropout(nn::DropoutOptions(0.3).sample_dim(1));
  nn::Dropout samples_first(0.3);
  const torch::Tensor input = torch::randn({7, 12, 11});
  const torch::Tensor whole = run_split(dropout, input, 1, 1);
  EXPECT_TRUE(test::same_bits(run_split(dropout, input, 5, 1), whole));
  EXPECT_TRUE(test::same_bits(run_split(samples_first, input.transpose(0, 1), 1), whole.transpose(0, 1)));
}

TEST(DropoutTest, DrawsTheSameMaskInRecompute) {
  nn::Dropout first;
  nn::Dropout second;
  const torch::Tensor input = torch::randn({8, 100});
  LayerRun run = some_run();
  std::vector<torch::Tensor> outputs;
  for (const bool recomputing : {false, true}) {
    run.recomputing = recomputing;
    const LayerScope scope(run);
    outputs.push_back(first->forward(input));
    outputs.push_back(second->forward(input));
  }
  EXPECT_TRUE(test::same_bits(outputs[0], outputs[2]));
  EXPECT_TRUE(test::same_bits(outputs[1], outputs[3]));
}

TEST(DropoutTest, DrawsTheSameMaskWhenALayerIsRunAgainAtOnce) {
  nn::Dropout dropout;
  const torch::Tensor input = torch::ones({8, 100});
  const torch::Tensor once = run_layer(dropout, input, some_run());
  EXPECT_TRUE(test::same_bits(run_layer(dropout, input, some_run()), once));
}

TEST(DropoutTest, DrawsUnrelatedMasksForEachSeedStepLayerSampleAndCall) {
  nn::Dropout dropout;
  const torch::Tensor input = torch::ones({32, 100});
  const LayerScope scope(some_run());
  const torch::Tensor mask = dropout->forward(input);
  expect_unrelated(mask, dropout->forward(input));  // another call in the same layer run
  LayerRun run = some_run();
  ++run.seed;
  expect_unrelated(mask, run_layer(dropout, input, run));
  run = some_run();
  ++run.step;
  expect_unrelated(mask, run_layer(dropout, input, run));
  run = some_run();
  ++run.layer;
  expect_unrelated(mask, run_layer(dropout, input, run));
  run = some_run();
  run.first_sample = 32;
  expect_unrelated(mask, run_layer(dropout, input, run));
  expect_unrelated(mask.slice(0, 0, 31), mask.slice(0, 1, 32));
  expect_unrelated(mask.slice(1, 0, 99), mask.slice(1, 1, 100));
}

TEST(DropoutTest, KeepsTheRightShareAndScalesIt) {
  const torch::Tensor input = torch::ones({64, 4096}, torch::kDouble);
  for (const double p : {0.1, 0.5, 0.9}) {
    nn::Dropout dropout(p);
    const torch::Tensor output = run_layer(dropout, input, some_run());
    const torch::Tensor kept = output != 0;
    EXPECT_NEAR(kept.to(torch::kDouble).mean().item<double>(), 1 - p, 0.004);  // four standard deviations
    EXPECT_TRUE(test::same_bits(output, kept.to(torch::kDouble) * (1 / (1 - p))));
  }
}

TEST(DropoutTest, DropsNothingWithProbabilityZeroAndAllWithOne) {
  const torch::Tensor input = torch::randn({4, 70});
  nn::Dropout nothing(0.0);
  nn::Dropout all(1.0);
  EXPECT_TRUE(test::same_bits(run_layer(nothing, input, some_run()), input));
  EXPECT_TRUE(test::same_bits(run_layer(all, input, some_run()), input * 0));  // with the signs of the input
}

// The words by libtorch's own Philox. Masks must never change: a run that is resumed relies on them.
TEST(DropoutTest, TakesItsMaskFromPhiloxAsDocumented) {
  const double p = 0.25;
  nn::Dropout dropout(p);
  LayerRun run = some_run();
  run.seed = 0x123456789abcdef0ULL;
  run.first_sample = 0x1ffffffffLL;
  const std::int64_t num_samples = 2;
  const std::int64_t size = 200;  // three whole groups of 64 and a part of one
  const LayerScope scope(run);
  for (std::uint64_t call = 0; call < 2; ++call) {
    const torch::Tensor mask = dropout->forward(torch::ones({num_samples, size}));
    at::Philox4_32 keys(run.seed, call << 32 | static_cast<std::uint64_t>(run.layer), run.step);
    std::uint64_t key = keys();
    key |= static_cast<std::uint64_t>(keys()) << 32;
    for (std::int64_t row = 0; row < num_samples; ++row) {
      for (std::int64_t element = 0; element < size; ++element) {
        at::Philox4_32 words(key, run.first_sample + row, element / 64 * 16 + element % 16);
        std::uint32_t word = 0;
        for (std::int64_t index = 0; index <= element / 16 % 4; ++index) word = words();
        const float expected = word >= 0x40000000U ? static_cast<float>(1 / (1 - p)) : 0.0F;
        ASSERT_EQ(mask[row][element].item<float>(), expected) << "call " << call << ", row " << row << ", " << element;
      }
    }
  }
}

TEST(DropoutTest, DropsTheSameElementsInEveryFloatingTypeAndMemoryFormat) {
  nn::Dropout dropout(0.5);
  const torch::Tensor input = torch::ones({4, 3, 5, 5});
  const torch::Tensor output = run_layer(dropout, input, some_run());
  for (const auto dtype : {torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    const torch::Tensor other = run_layer(dropout, input.to(dtype), some_run());
    EXPECT_EQ(other.scalar_type(), dtype);
    EXPECT_TRUE(test::same_bits(other.to(torch::kFloat), output));
  }
  const torch::Tensor last = run_layer(dropout, input.contiguous(at::MemoryFormat::ChannelsLast), some_run());
  EXPECT_TRUE(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(test::same_bits(last, output));
}

TEST(DropoutTest, PassesTheGradientThroughTheMask) {
  nn::Dropout dropout(0.5);
  const torch::Tensor input = torch::randn({6, 50}, torch::requires_grad());
  const torch::Tensor mask = run_layer(dropout, torch::ones({6, 50}), some_run());
  run_layer(dropout, input, some_run()).sum().backward();
  EXPECT_TRUE(test::same_bits(input.grad(), mask));
}

TEST(DropoutTest, IsTheIdentityInEvaluation) {
  nn::Dropout dropout(0.5);
  dropout->eval();
  const torch::Tensor input = torch::randn({4, 10});
  EXPECT_TRUE(run_layer(dropout, input, some_run()).is_same(input));
  EXPECT_TRUE(dropout->forward(input).is_same(input));
}

TEST(DropoutTest, IsPlainDropoutOutsideALayerRun) {
  nn::Dropout dropout(0.4);
  const torch::Tensor input = torch::randn({16, 100});
  torch::manual_seed(1);
  const torch::Tensor expected = torch::dropout(input, 0.4, true);
  torch::manual_seed(1);
  EXPECT_TRUE(test::same_bits(dropout->forward(input), expected));
}

TEST(DropoutTest, LeavesTheStreamOfOtherDrawsAlone) {
  nn::Dropout dropout;
  torch::Tensor expected;
  {
    const LayerScope scope(some_run());
    expected = torch::rand({5});
  }
  const LayerScope scope(some_run());
  dropout->forward(torch::ones({4, 10}));
  EXPECT_TRUE(test::same_bits(torch::rand({5}), expected));
}

TEST(DropoutTest, RefusesWhatItCannotDoAndNamesTheValue) {
  const auto message = [](auto action) -> std::string {
    try {
      action();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([] { nn::Dropout(1.5); }), HasSubstr("1.5"));
  EXPECT_THAT(message([] { nn::Dropout(std::numeric_limits<double>::quiet_NaN()); }), HasSubstr("nan"));
  nn::Dropout dropout;
  EXPECT_THAT(message([&] { run_layer(dropout, torch::ones({2, 2}, torch::kLong), some_run()); }), HasSubstr("Long"));
  EXPECT_THAT(message([&] { run_layer(dropout, torch::ones({}), some_run()); }), HasSubstr("0 dimensions"));
}

TEST(DropoutTest, IsCloned) {
  nn::Dropout dropout(nn::DropoutOptions(0.2).sample_dim(1));
  const auto copy = std::dynamic_pointer_cast<nn::DropoutImpl>(dropout->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->options.p(), 0.2);
  EXPECT_EQ(copy->options.sample_dim(), 1);
}

}  // namespace
}  // namespace gpipe
