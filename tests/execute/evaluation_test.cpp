// Runs without training, and the caller's settings that go with the work to the stages' threads.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>

#include "gpipe/execute/pipeline.h"
#include "gpipe/schedule/generators.h"
#include "tests/execute/plain_chain.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using test::expect_same_bits;
using torch::nn::Linear;

// Notes the settings of the thread its forward runs on.
struct WitnessImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    num_forwards += is_recomputing() ? 0 : 1;
    num_recomputes += is_recomputing() ? 1 : 0;
    grad_mode = at::GradMode::is_enabled();
    inference_mode = c10::InferenceMode::is_enabled();
    return linear(torch::tanh(input));
  }
  Linear linear = register_module("linear", Linear(4, 4));
  std::atomic<int> num_forwards{0};
  std::atomic<int> num_recomputes{0};
  std::atomic<bool> grad_mode{false};
  std::atomic<bool> inference_mode{false};
};
TORCH_MODULE(Witness);

struct Fixture {
  explicit Fixture(Recompute recompute = Recompute::kNever, int num_micro_batches = 4)
      : pipeline(LayerChain(torch::nn::Sequential(witnesses[0], witnesses[1], witnesses[2])),
                 PipelineOptions(3).num_micro_batches(num_micro_batches).recompute(recompute).balance({1, 1, 1})) {
    at::set_num_threads(1);
    torch::manual_seed(9);
    input = torch::randn({8, 4});
  }
  int num_recomputes() const {
    return witnesses[0]->num_recomputes + witnesses[1]->num_recomputes + witnesses[2]->num_recomputes;
  }
  // What the layers make of the input, micro-batch by micro-batch.
  at::Tensor expected() {
    const torch::NoGradGuard no_grad;
    Tensors parts;
    for (at::Tensor part : input.tensor_split(4)) {
      for (Witness& witness : witnesses) part = witness->linear(torch::tanh(part));
      parts.push_back(part);
    }
    return at::cat(parts);
  }

  std::vector<Witness> witnesses = std::vector<Witness>(3);
  Pipeline pipeline;
  at::Tensor input;
};

TEST(Evaluation, NoGradReachesEveryStage) {
  Fixture run(Recompute::kAlways);
  const torch::NoGradGuard no_grad;
  const at::Tensor output = run.pipeline->forward(run.input);
  EXPECT_FALSE(output.requires_grad());
  expect_same_bits(output, run.expected(), "output");
  for (const Witness& witness : run.witnesses) {
    EXPECT_FALSE(witness->grad_mode);
    EXPECT_EQ(witness->num_forwards, 1 + 4);  // the trial, and the micro-batches
    EXPECT_EQ(witness->num_recomputes, 0);
  }
}

TEST(Evaluation, InferenceModeReachesEveryStage) {
  Fixture run(Recompute::kAlways);
  const at::Tensor expected = run.expected();
  {
    const torch::InferenceMode inference;
    const at::Tensor output = run.pipeline->forward(run.input);
    EXPECT_TRUE(output.is_inference());
    EXPECT_TRUE(test::same_bits(output, expected));
    for (const Witness& witness : run.witnesses) EXPECT_TRUE(witness->inference_mode);
  }
  const at::Tensor output = run.pipeline->forward(run.input);
  EXPECT_FALSE(output.is_inference());
  EXPECT_TRUE(output.requires_grad());
  for (const Witness& witness : run.witnesses) EXPECT_FALSE(witness->inference_mode);
}

TEST(Evaluation, InputsMadeInInferenceModeMayBeEvaluatedAfterIt) {
  Fixture run;
  const at::Tensor input = [&] {
    const torch::InferenceMode inference;
    return run.input * 1.0;
  }();
  const torch::NoGradGuard no_grad;
  expect_same_bits(run.pipeline->forward(input), run.expected(), "output");
}

TEST(Evaluation, NeverRecomputesEvenIfABackwardFollows) {
  Fixture run(Recompute::kAlways);
  run.pipeline->eval();
  run.pipeline->forward(run.input).sum().backward();
  EXPECT_TRUE(run.witnesses[0]->linear->weight.grad().defined());
  EXPECT_EQ(run.num_recomputes(), 0);
  run.pipeline->train();
  run.pipeline->forward(run.input).sum().backward();
  EXPECT_GT(run.num_recomputes(), 0);
}

TEST(Evaluation, AStepInEvaluationModeTrainsTheSameBitsAndNeverRecomputes) {
  Fixture evaluated(Recompute::kAlways);
  Fixture trained(Recompute::kAlways);
  for (std::size_t index = 0; index < 3; ++index) {
    const torch::NoGradGuard no_grad;
    trained.witnesses[index]->linear->weight.copy_(evaluated.witnesses[index]->linear->weight);
    trained.witnesses[index]->linear->bias.copy_(evaluated.witnesses[index]->linear->bias);
  }
  evaluated.pipeline->eval();
  for (Fixture* run : {&evaluated, &trained}) run->pipeline->train_step(run->input, run->input, torch::nn::MSELoss());
  expect_same_bits(*evaluated.pipeline, *trained.pipeline);
  EXPECT_EQ(evaluated.num_recomputes(), 0);
  EXPECT_GT(trained.num_recomputes(), 0);
}

TEST(Evaluation, TheDropInForwardGivesInputGradientsEvenIfAllParametersAreFrozen) {
  Fixture run(Recompute::kAlways, 1);
  for (at::Tensor& parameter : run.pipeline->parameters()) parameter.requires_grad_(false);
  at::Tensor plain_input = run.input.clone().requires_grad_(true);
  at::Tensor plain = plain_input;
  for (Witness& witness : run.witnesses) plain = witness->linear(torch::tanh(plain));
  plain.sum().backward();
  const at::Tensor input = run.input.clone().requires_grad_(true);
  run.pipeline->forward(input).sum().backward();
  expect_same_bits(input.grad(), plain_input.grad(), "gradient of the input");
  for (const at::Tensor& parameter : run.pipeline->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(Evaluation, AnInputOfAGraphPassesItsGradientOn) {
  Fixture run(Recompute::kNever, 1);
  const at::Tensor leaf = run.input.clone().requires_grad_(true);
  run.pipeline->forward(leaf * 2).sum().backward();
  const at::Tensor other = run.input.clone().requires_grad_(true);
  at::Tensor plain = other * 2;
  for (Witness& witness : run.witnesses) plain = witness->linear(torch::tanh(plain));
  plain.sum().backward();
  expect_same_bits(leaf.grad(), other.grad(), "gradient of the leaf");
}

// Makes numbers below the smallest normal one.
struct TinyImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input * scale * 1e-20; }
  at::Tensor scale = register_parameter("scale", torch::full({}, 1e-20F));
};
TORCH_MODULE(Tiny);

struct FlushDenormal {
  FlushDenormal() { at::globalContext().setFlushDenormal(true); }
  ~FlushDenormal() { at::globalContext().setFlushDenormal(false); }
};

TEST(Evaluation, TheFlushingOfDenormalNumbersReachesEveryStageAndLeavesItAgain) {
  Pipeline pipeline(LayerChain(torch::nn::Sequential(Tiny(), torch::nn::Identity())),
                    PipelineOptions(2).num_micro_batches(2));
  const at::Tensor input = torch::ones({4, 1});
  const torch::NoGradGuard no_grad;
  at::Tensor expected;
  at::Tensor flushed;
  {
    const FlushDenormal flush;
    expected = input * 1e-20F * 1e-20F;
    flushed = pipeline->forward(input);
  }
  // Looked at only now: while they are flushed, they compare as zero.
  ASSERT_EQ(expected.max().item<float>(), 0) << "this processor cannot flush";
  EXPECT_EQ(flushed.max().item<float>(), 0);
  EXPECT_GT(pipeline->forward(input).max().item<float>(), 0);
}

TEST(Evaluation, AScheduleOfOnesOwnEvaluatesBatchesOfAnySize) {
  torch::manual_seed(2);
  torch::nn::Sequential model(Linear(4, 4), torch::nn::Tanh(), Linear(4, 4), Linear(4, 4));
  for (const Schedule& schedule : {schedules::one_f_one_b(2, 4), schedules::interleaved(2, 4, 2)}) {
    Pipeline pipeline(model, PipelineOptions(2).custom_schedule(schedule));
    pipeline->eval();
    const torch::NoGradGuard no_grad;
    for (const int rows : {1, 3, 4, 9}) {
      const at::Tensor input = torch::randn({rows, 4});
      EXPECT_TRUE(torch::allclose(pipeline->forward(input), model->forward(input)));
    }
  }
}

}  // namespace
}  // namespace gpipe
