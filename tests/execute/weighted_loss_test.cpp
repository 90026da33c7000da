// Losses with a weight of their own: means over something else than samples, divided by the weight of the whole
// mini-batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "gpipe/execute/pipeline.h"
#include "tests/execute/plain_chain.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using test::expect_same_bits;
using test::expect_transparent;
using test::Problem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;
using torch::nn::Tanh;

constexpr std::int64_t kIgnored = -100;

LayerChain make_chain() {
  return LayerChain()
      .add<Linear>("0", 4, 6)
      .add<Tanh>("1")
      .add<torch::nn::Dropout>("2", 0.2)
      .add<Linear>("3", 6, 6)
      .add<Linear>("4", 6, 5);
}

LossValue mean_over_counted(const Tensors& outputs, const Tensors& targets) {
  const auto options = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum);
  return LossValue(torch::nn::functional::cross_entropy(outputs[0], targets[0], options),
                   targets[0].ne(kIgnored).sum());
}

// Of 13 samples in micro-batches of 4, 3, 3 and 3; those of the second are all ignored.
Tensors some_targets() {
  at::Tensor target = torch::randint(5, {13}, torch::kLong);
  target[1] = kIgnored;
  target.slice(0, 4, 7).fill_(kIgnored);
  target.slice(0, 11, 13).fill_(kIgnored);
  return {target};
}

Problem make_problem() {
  torch::manual_seed(3);
  return {make_chain, {torch::randn({13, 4})}, some_targets(), mean_over_counted};
}

struct Fixture {
  explicit Fixture(PipelineOptions options = PipelineOptions(2))
      : pipeline(make_chain(), options.num_micro_batches(4).balance({2, 3})) {
    torch::manual_seed(4);
    input = torch::randn({13, 4});
    targets = some_targets();
  }
  Tensors grads() const {
    Tensors grads;
    for (const at::Tensor& parameter : pipeline->parameters()) {
      grads.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
    }
    return grads;
  }
  void expect_grads(const Tensors& expected) const {
    for (std::size_t index = 0; index < expected.size(); ++index) {
      expect_same_bits(pipeline->parameters()[index].grad(), expected[index], "gradient " + std::to_string(index));
    }
  }
  Pipeline pipeline;
  at::Tensor input;
  Tensors targets;
};

// Its gradients add up over two steps; with a micro-batch of weight 0.
TEST(WeightedLoss, EveryNumberOfStagesScheduleAndRecomputeModeGivesTheBitsOfThePlainLoop) {
  expect_transparent(make_problem());
}

// The gradient of one tensor comes from two stages, and is divided once.
TEST(WeightedLoss, IsDividedOnceWhereTwoStagesShareAParameter) {
  Problem problem = make_problem();
  problem.make = [] {
    LayerChain chain = LayerChain()
                           .add<Linear>("0", 4, 6)
                           .add<Tanh>("1")
                           .add<Linear>("2", 6, 6)
                           .add<Tanh>("3")
                           .add<Linear>("4", 6, 6)
                           .add<Linear>("5", 6, 5);
    chain.tie("2.weight", "4.weight");
    return chain;
  };
  expect_transparent(problem);
}

TEST(WeightedLoss, AnInputThatRequiresAGradientGetsItDividedToo) {
  Problem problem = make_problem();
  problem.inputs[0].requires_grad_(true);
  expect_transparent(problem);
}

TEST(WeightedLoss, EqualsTheMeanOverTheWholeMiniBatch) {
  at::set_num_threads(1);
  Fixture run;
  run.pipeline->eval();  // no dropout, so that one micro-batch is the same
  const StepResult step = run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
  const Tensors grads = run.grads();
  for (const at::Tensor& parameter : run.pipeline->parameters()) parameter.mutable_grad().reset();
  const at::Tensor whole = torch::nn::functional::cross_entropy(run.pipeline(run.input), run.targets[0]);
  whole.backward();
  EXPECT_TRUE(torch::allclose(step.loss, whole.detach()));
  EXPECT_EQ(step.weight, 7);
  for (std::size_t index = 0; index < grads.size(); ++index) {
    EXPECT_TRUE(torch::allclose(run.pipeline->parameters()[index].grad(), grads[index], 1e-4, 1e-6)) << index;
  }
}

TEST(WeightedLoss, TheGradientThatWasThereStaysTheSameTensor) {
  Fixture run;
  run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
  Tensors held;
  for (const at::Tensor& parameter : run.pipeline->parameters()) held.push_back(parameter.grad());
  const Tensors before = run.grads();
  run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
  for (std::size_t index = 0; index < held.size(); ++index) {
    EXPECT_TRUE(run.pipeline->parameters()[index].grad().is_same(held[index])) << index;
    EXPECT_FALSE(test::same_bits(held[index], before[index])) << index;
  }
}

TEST(WeightedLoss, AWeightMayBeANumberAndSoMayMetricsBeThere) {
  Fixture run;
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    const at::Tensor counts = targets[0].ne(kIgnored);
    const auto num_counted = counts.sum().item<std::int64_t>();
    const at::Tensor right = outputs[0].argmax(1).eq(targets[0]).logical_and(counts).sum();
    const at::Tensor sum = mean_over_counted(outputs, targets).loss;
    return LossValue(sum, num_counted, {{"accuracy", right / num_counted}, {"targets", targets[0]}});
  };
  const StepResult step = run.pipeline->train_step({run.input}, run.targets, loss);
  EXPECT_EQ(step.weight, 7);
  const double right =
      step.metrics.at("accuracy").item<double>() * 7;  // 0 / 0 of the second micro-batch does not count
  EXPECT_NEAR(right, std::round(right), 1e-5);
  EXPECT_TRUE(test::same_bits(step.metrics.at("targets"), run.targets[0]));
}

TEST(WeightedLoss, AMiniBatchOfWeightZeroAddsNothing) {
  Fixture run;
  const Tensors ignored = {torch::full({13}, kIgnored)};
  const StepResult first = run.pipeline->train_step({run.input}, ignored, mean_over_counted);
  EXPECT_EQ(first.loss.item<double>(), 0);
  EXPECT_EQ(first.weight, 0);
  for (const at::Tensor& parameter : run.pipeline->parameters()) EXPECT_FALSE(parameter.grad().defined());
  run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
  const Tensors before = run.grads();
  at::Tensor input = run.input.clone().requires_grad_(true);
  run.pipeline->train_step({input}, ignored, mean_over_counted);
  run.expect_grads(before);
  EXPECT_FALSE(input.grad().defined());
}

// Gives a wrong weight, or none, for the third micro-batch.
TEST(WeightedLoss, WrongWeightsAreRefusedAndLeaveTheGradientsAsTheyWere) {
  struct Wrong {
    at::Tensor weight;
    const char* message;
  };
  for (const Wrong& wrong : {Wrong{torch::tensor(-1.0), "the weight of the loss is -1"},
                             Wrong{torch::tensor(std::numeric_limits<double>::quiet_NaN()), "is nan"},
                             Wrong{torch::tensor(std::numeric_limits<double>::infinity()), "is inf"},
                             Wrong{torch::ones({3}), "has the shape [3]"}, Wrong{at::Tensor(), "undefined tensor"}}) {
    for (const bool check_loss : {false, true}) {
      Fixture run(PipelineOptions(2).check_loss(check_loss));
      run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
      const Tensors before = run.grads();
      int calls = 0;
      const auto loss = [&](const Tensors& outputs, const Tensors& targets) {
        const at::Tensor sum = mean_over_counted(outputs, targets).loss;
        return LossValue(sum, ++calls == 3 ? wrong.weight : torch::ones({}));
      };
      EXPECT_THAT([&] { run.pipeline->train_step({run.input}, run.targets, loss); },
                  ThrowsMessage<ActionError>(HasSubstr(wrong.message)));
      run.expect_grads(before);
      EXPECT_EQ(run.pipeline->step(), 1);
    }
  }
}

TEST(WeightedLoss, AWeightForSomeMicroBatchesOnlyIsRefused) {
  for (const bool first_has_one : {true, false}) {
    Fixture run;
    run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
    const Tensors before = run.grads();
    int calls = 0;
    const auto loss = [&](const Tensors& outputs, const Tensors& targets) {
      const LossValue value = mean_over_counted(outputs, targets);
      return (++calls == 3) == first_has_one ? LossValue(value.loss) : value;
    };
    EXPECT_THAT([&] { run.pipeline->train_step({run.input}, run.targets, loss); },
                ThrowsMessage<ActionError>(HasSubstr("for all, or for none")));
    if (first_has_one) run.expect_grads(before);
  }
}

TEST(WeightedLoss, ALossThatIsNotFiniteIsRefusedOnRequest) {
  Fixture run(PipelineOptions(2).check_loss(true));
  run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
  const Tensors before = run.grads();
  run.input[9] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(run.pipeline->train_step({run.input}, run.targets, mean_over_counted), NonFiniteLossError);
  run.expect_grads(before);
}

TEST(WeightedLoss, ALayerThatFailsLeavesTheGradientsAsTheyWere) {
  Fixture run;
  run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
  const Tensors before = run.grads();
  int calls = 0;
  const auto loss = [&](const Tensors& outputs, const Tensors& targets) {
    if (++calls == 4) throw std::runtime_error("out of luck");
    return mean_over_counted(outputs, targets);
  };
  EXPECT_THROW(run.pipeline->train_step({run.input}, run.targets, loss), ActionError);
  run.expect_grads(before);
}

// Earlier gradients and those of the step are there at once, until the step is over.
TEST(WeightedLoss, MemoryCountsTheEarlierGradientsWhileTheyAreAside) {
  Fixture run(PipelineOptions(2).measure_memory(true));
  const StepResult first = run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
  const std::vector<StageMemory> after_first = run.pipeline->memory();
  const StepResult second = run.pipeline->train_step({run.input}, run.targets, mean_over_counted);
  const std::vector<StageMemory> after_second = run.pipeline->memory();
  for (std::size_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(first.memory[stage].gradient_bytes, first.memory[stage].parameter_bytes);
    EXPECT_EQ(second.memory[stage].gradient_bytes, 2 * first.memory[stage].parameter_bytes);
    EXPECT_EQ(after_second[stage].gradient_bytes, first.memory[stage].parameter_bytes);
    EXPECT_EQ(second.memory[stage].live_bytes, first.memory[stage].live_bytes);
    EXPECT_EQ(after_second[stage].live_bytes, after_first[stage].live_bytes);
    EXPECT_GE(second.memory[stage].working_bytes(), 0);
  }
}

}  // namespace
}  // namespace gpipe
