// Deferred batch norm against torch's: the same outputs by micro-batch, the same running statistics by mini-batch.
#include "gpipe/model/deferred_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayerRun run_of(std::int64_t step, int micro_batch, bool recomputing = false) {
  LayerRun run;
  run.step = step;
  run.micro_batch = micro_batch;
  run.recomputing = recomputing;
  return run;
}

// One mini-batch in micro-batches; every one is recomputed afterwards.
template <typename Norm>
std::vector<torch::Tensor> run_step(Norm& norm, const torch::Tensor& input, int num_micro_batches, int step = 0) {
  std::vector<torch::Tensor> outputs;
  const std::vector<torch::Tensor> parts = input.tensor_split(num_micro_batches);
  for (const bool recomputing : {false, true}) {
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const LayerScope scope(run_of(step, static_cast<int>(part), recomputing));
      outputs.push_back(norm->forward(parts[part]));
    }
  }
  return outputs;
}

std::vector<torch::Tensor> buffers_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> copies;
  for (const torch::Tensor& buffer : module.buffers()) copies.push_back(buffer.clone());
  return copies;
}

void expect_close_buffers(const torch::nn::Module& module, const torch::nn::Module& expected, double tolerance = 1e-6) {
  const auto got = module.named_buffers();
  for (const auto& buffer : expected.named_buffers()) {
    EXPECT_TRUE(torch::allclose(got[buffer.key()], buffer.value(), tolerance, tolerance))
        << buffer.key() << ": got " << got[buffer.key()] << ", expected " << buffer.value();
  }
}

TEST(DeferredBatchNormTest, MovesItsStatisticsToThoseOfTheWholeMiniBatch) {
  for (const int num_micro_batches : {1, 2, 3, 4}) {  // of 7 samples: ragged
    nn::DeferredBatchNorm2d norm(3);
    torch::nn::BatchNorm2d plain(3);
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor input = torch::randn({7, 3, 4, 5}) * 2 + step;
      run_step(norm, input, num_micro_batches, step);
      norm->end_step();
      plain->forward(input);
    }
    expect_close_buffers(*norm, *plain);
  }
}

TEST(DeferredBatchNormTest, DoesNotCancelOnDataFarFromZero) {
  nn::DeferredBatchNorm1d norm(torch::nn::BatchNormOptions(2).momentum(1.0));
  const torch::Tensor input = torch::randn({64, 2}) + 1e4;
  run_step(norm, input, 8);
  norm->end_step();
  const torch::Tensor expected = input.to(torch::kDouble).var(0, /*unbiased=*/true);
  EXPECT_TRUE(torch::allclose(norm->running_var.to(torch::kDouble), expected, 1e-3, 0))
      << norm->running_var << expected;
}

TEST(DeferredBatchNormTest, CountsOneBatchPerStepWhateverTheNumberOfMicroBatches) {
  for (const int num_micro_batches : {1, 2, 3, 4}) {
    nn::DeferredBatchNorm1d norm(3);
    torch::nn::BatchNorm1d plain(3);
    const torch::Tensor input = torch::randn({6, 3, 5});
    run_step(norm, input, num_micro_batches);
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 0);
    EXPECT_TRUE(test::same_bits(norm->running_var, torch::ones({3})));
    norm->end_step();
    norm->end_step();  // nothing is pending any more
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 1);
    plain->forward(input);
    expect_close_buffers(*norm, *plain);
  }
}

TEST(DeferredBatchNormTest, CommitsAStepWhenTheNextOneArrives) {
  nn::DeferredBatchNorm1d norm(3);
  torch::nn::BatchNorm1d plain(3);
  const torch::Tensor input = torch::randn({8, 3});
  run_step(norm, input, 4, 0);
  run_step(norm, torch::randn({8, 3}), 4, 1);
  plain->forward(input);
  expect_close_buffers(*norm, *plain);
}

// In double, where the order of the additions shows.
TEST(DeferredBatchNormTest, MergesInAscendingOrderWhateverTheOrderOfTheForwards) {
  const torch::Tensor input = torch::randn({24, 64}, torch::kDouble) + 7;
  std::vector<std::vector<torch::Tensor>> buffers;
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 3}, std::vector<int>{2, 0, 3, 1}}) {
    nn::DeferredBatchNorm1d norm(64);
    norm->to(torch::kDouble);
    for (const int micro_batch : order) {
      const LayerScope scope(run_of(0, micro_batch));
      norm->forward(input.tensor_split(4)[micro_batch]);
    }
    norm->end_step();
    buffers.push_back(buffers_of(*norm));
  }
  for (std::size_t index = 0; index < 3; ++index) EXPECT_TRUE(test::same_bits(buffers[0][index], buffers[1][index]));
}

TEST(DeferredBatchNormTest, DoesNotCountARecomputeEvenOfAStepThatHasEnded) {
  nn::DeferredBatchNorm1d norm(3);
  const torch::Tensor input = torch::randn({6, 3});
  {
    const LayerScope scope(run_of(0, 0));
    norm->forward(input);
  }
  norm->end_step();
  const auto before = buffers_of(*norm);
  {
    const LayerScope scope(run_of(0, 0, /*recomputing=*/true));
    norm->forward(input);
  }
  norm->end_step();
  const auto after = buffers_of(*norm);
  for (std::size_t index = 0; index < 3; ++index) EXPECT_TRUE(test::same_bits(before[index], after[index]));
}

TEST(DeferredBatchNormTest, DropsWhatAnAbandonedStepLeft) {
  nn::DeferredBatchNorm1d norm(3);
  torch::nn::BatchNorm1d plain(3);
  run_step(norm, torch::randn({6, 3}) + 100, 2, 0);
  norm->abandon_step();
  const torch::Tensor input = torch::randn({6, 3});
  run_step(norm, input, 2, 1);
  norm->end_step();
  plain->forward(input);
  expect_close_buffers(*norm, *plain);
}

TEST(DeferredBatchNormTest, AveragesAllStepsWithoutAMomentum) {
  const auto options = torch::nn::BatchNormOptions(3).momentum(c10::nullopt);
  nn::DeferredBatchNorm1d norm(options);
  torch::nn::BatchNorm1d plain(options);
  for (int step = 0; step < 4; ++step) {
    const torch::Tensor input = torch::randn({9, 3}) + step;
    run_step(norm, input, 3, step);
    norm->end_step();
    plain->forward(input);
  }
  expect_close_buffers(*norm, *plain);
}

// Outputs and gradients of each micro-batch, in the forward and in its recompute.
template <typename Norm, typename Plain>
void expect_bitwise_as_torch(Norm norm, Plain plain, const torch::Tensor& input) {
  const torch::Tensor ours = input.clone().set_requires_grad(true);
  const torch::Tensor theirs = input.clone().set_requires_grad(true);
  std::vector<torch::Tensor> expected;
  for (const torch::Tensor& part : theirs.tensor_split(3)) expected.push_back(plain->forward(part));
  const std::vector<torch::Tensor> outputs = run_step(norm, ours, 3);
  for (std::size_t index = 0; index < outputs.size(); ++index) {
    EXPECT_TRUE(test::same_bits(outputs[index], expected[index % 3]));
  }
  for (std::size_t part = 0; part < 3; ++part) {
    outputs[3 + part].pow(3).sum().backward();
    expected[part].pow(3).sum().backward();
  }
  EXPECT_TRUE(test::same_bits(ours.grad(), theirs.grad()));
  EXPECT_TRUE(test::same_bits(norm->weight.grad(), plain->weight.grad()));
  EXPECT_TRUE(test::same_bits(norm->bias.grad(), plain->bias.grad()));
}

TEST(DeferredBatchNormTest, HasTheOutputsAndGradientsOfTorchForEachMicroBatch) {
  expect_bitwise_as_torch(nn::DeferredBatchNorm1d(4), torch::nn::BatchNorm1d(4), torch::randn({8, 4}));
  expect_bitwise_as_torch(nn::DeferredBatchNorm1d(4), torch::nn::BatchNorm1d(4), torch::randn({8, 4, 6}));
  expect_bitwise_as_torch(nn::DeferredBatchNorm2d(4), torch::nn::BatchNorm2d(4), torch::randn({8, 4, 3, 5}));
  expect_bitwise_as_torch(nn::DeferredBatchNorm2d(4), torch::nn::BatchNorm2d(4),
                          torch::randn({8, 4, 3, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  expect_bitwise_as_torch(nn::DeferredBatchNorm3d(4), torch::nn::BatchNorm3d(4), torch::randn({8, 4, 3, 2, 2}));
}

TEST(DeferredBatchNormTest, IsBitwiseTorchOutsideALayerRun) {
  nn::DeferredBatchNorm1d norm(3);
  torch::nn::BatchNorm1d plain(3);
  for (int batch = 0; batch < 3; ++batch) {
    const torch::Tensor input = torch::randn({9, 3}) + batch;
    EXPECT_TRUE(test::same_bits(norm->forward(input), plain->forward(input)));
  }
  const auto got = buffers_of(*norm);
  const auto expected = buffers_of(*plain);
  for (std::size_t index = 0; index < 3; ++index) EXPECT_TRUE(test::same_bits(got[index], expected[index]));
}

TEST(DeferredBatchNormTest, UsesTheRunningStatisticsInEvaluationAndLeavesThemAlone) {
  nn::DeferredBatchNorm1d norm(3);
  run_step(norm, torch::randn({9, 3}) + 5, 3);
  norm->end_step();
  norm->eval();
  const auto before = buffers_of(*norm);
  const torch::Tensor input = torch::randn({4, 3});
  const torch::Tensor expected =
      torch::batch_norm(input, norm->weight, norm->bias, norm->running_mean, norm->running_var, false, 0, 1e-5, false);
  EXPECT_TRUE(test::same_bits(run_step(norm, input, 4, 1)[0], expected.slice(0, 0, 1)));
  norm->end_step();
  const auto after = buffers_of(*norm);
  for (std::size_t index = 0; index < 3; ++index) EXPECT_TRUE(test::same_bits(before[index], after[index]));
}

TEST(DeferredBatchNormTest, NormalisesByTheBatchWhereItTracksNothing) {
  nn::DeferredBatchNorm1d norm(torch::nn::BatchNormOptions(3).track_running_stats(false).affine(false));
  torch::nn::BatchNorm1d plain(torch::nn::BatchNormOptions(3).track_running_stats(false).affine(false));
  const torch::Tensor input = torch::randn({9, 3});
  EXPECT_TRUE(test::same_bits(run_step(norm, input, 1)[0], plain->forward(input)));
  norm->end_step();
  norm->eval();
  EXPECT_TRUE(test::same_bits(run_step(norm, input, 1)[0], plain->forward(input)));
}

TEST(DeferredBatchNormTest, HasTheStateNamesOfTorch) {
  nn::DeferredBatchNorm3d norm(3);
  EXPECT_THAT(norm->named_parameters().keys(), ElementsAre("weight", "bias"));
  EXPECT_THAT(norm->named_buffers().keys(), ElementsAre("running_mean", "running_var", "num_batches_tracked"));
  EXPECT_EQ(norm->num_batches_tracked.scalar_type(), torch::kLong);
}

TEST(DeferredBatchNormTest, ACloneHasItsOwnStatisticsAndNothingPending) {
  nn::DeferredBatchNorm1d norm(3);
  run_step(norm, torch::randn({6, 3}), 2);
  const auto copy = std::dynamic_pointer_cast<nn::DeferredBatchNorm1dImpl>(norm->clone());
  ASSERT_NE(copy, nullptr);
  copy->end_step();
  EXPECT_EQ(copy->num_batches_tracked.item<int>(), 0);
  norm->end_step();
  EXPECT_EQ(norm->num_batches_tracked.item<int>(), 1);
  EXPECT_EQ(copy->num_batches_tracked.item<int>(), 0);
}

TEST(DeferredBatchNormTest, RefusesAnInputOfTheWrongNumberOfDimensions) {
  nn::DeferredBatchNorm2d norm(3);
  EXPECT_THROW(norm->forward(torch::randn({4, 3})), InvalidArgument);
}

}  // namespace
}  // namespace gpipe
