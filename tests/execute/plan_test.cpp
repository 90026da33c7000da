// A pipeline that runs a plan, and one that makes it.
#include "gpipe/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/profiler.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/simulate/planner.h"
#include "tests/execute/plain_chain.h"
#include "tests/execute/test_models.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

Tensors trained_with(const test::TestModel& model, const PipelineOptions& options) {
  Pipeline pipeline(model.chain, options);
  torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    pipeline->train_step(model.input, model.target, model.loss);
    optimizer.step();
  }
  Tensors values;
  for (const auto& item : pipeline->named_parameters()) values.push_back(item.value().detach().clone());
  return values;
}

// The same of the plain model.
Tensors parameters_of_plain_training(const test::TestModel& model) {
  at::set_num_threads(1);  // as the stages have
  test::PlainChain plain(model.chain, PipelineOptions(1).num_micro_batches(4));
  torch::optim::SGD optimizer(plain.model().parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    plain.train_step({model.input}, {model.target}, loss_of(model));
    optimizer.step();
  }
  return plain.model().parameters();
}

PlanOptions auto_options(int num_stages) {
  PlanOptions options;
  options.num_stages = num_stages;
  options.num_micro_batches = 4;
  options.recompute = Recompute::kAuto;
  options.optimizer_slots = 0;
  return options;
}

// What the fullest stage holds at least, over all partitions, if nothing is recomputed.
std::int64_t least_bytes_without_recompute(const test::TestModel& model) {
  PlanOptions options = auto_options(3);
  options.recompute = Recompute::kNever;
  options.memory_limit_bytes = 1;
  try {
    plan(profile(model.chain, model.input.narrow(0, 0, 4)), options);
  } catch (const InfeasibleError& error) {
    return 1 + error.missing_bytes();
  }
  return 0;
}

TEST(PlanTest, APipelineRunsWhatThePlanSaysWithTheSameBits) {
  const test::TestModel model = test::transformer();
  Profile measured = profile(model.chain, model.input.narrow(0, 0, 4));
  // Not the measured seconds, which are never the same: 15 equal layers, so that no stage has time to spare.
  for (LayerProfile& layer : measured.layers) {
    const double seconds = layer.name == "embedding" ? 0 : 1;
    layer.forward_seconds = seconds;
    layer.backward_seconds = 2 * seconds;
    layer.input_grad_seconds = layer.weight_grad_seconds = seconds;
  }
  PlanOptions options = auto_options(3);
  const Plan roomy = plan(measured, options);
  options.memory_limit_bytes = least_bytes_without_recompute(model) - 1;
  const Plan tight = parse_plan(to_json(plan(measured, options)));  // as another process would read it
  options.rematerialize = false;
  const Plan recomputing = parse_plan(to_json(plan(measured, options)));
  ASSERT_FALSE(tight.rematerialization.empty());  // something had to give
  ASSERT_FALSE(recomputing.recompute_by_stage.empty() && recomputing.recompute == Recompute::kNever);

  const Tensors expected = parameters_of_plain_training(model);
  for (const Plan& chosen : {roomy, tight, recomputing}) {
    Pipeline pipeline(model.chain, PipelineOptions(chosen));
    EXPECT_EQ(pipeline->layers_per_stage(), chosen.layers_per_stage);
    EXPECT_EQ(pipeline->rematerialization(), chosen.rematerialization);
    const Tensors got = trained_with(model, PipelineOptions(chosen));
    EXPECT_TRUE(test::same_bits(got, expected));
  }
}

TEST(PlanTest, AutoDropsOnlyWhatTheMemoryLimitAsksFor) {
  const test::TestModel model = test::transformer();
  const PipelineOptions options =
      PipelineOptions(3).num_micro_batches(4).recompute(Recompute::kAuto).optimizer_slots(0);
  Pipeline roomy(model.chain, options);
  roomy->train_step(model.input, model.target, model.loss);
  EXPECT_THAT(roomy->recompute_by_stage(), Each(Recompute::kNever));

  const std::int64_t limit = least_bytes_without_recompute(model) - 1;
  Pipeline tight(model.chain, PipelineOptions(options).memory_limit_bytes(limit));
  tight->train_step(model.input, model.target, model.loss);
  // Which of the two is faster depends on the seconds that were measured.
  EXPECT_TRUE(tight->recompute_by_stage() != roomy->recompute_by_stage() || !tight->rematerialization().empty());

  const Tensors expected = parameters_of_plain_training(model);
  const Tensors got = trained_with(model, PipelineOptions(options).memory_limit_bytes(limit));
  EXPECT_TRUE(test::same_bits(got, expected));
}

// A head whose outputs, and what the loss makes of them, are most of the memory.
struct WideHead {
  WideHead() {
    for (int layer = 0; layer < 4; ++layer) chain.add<test::FeedForwardBlock>("block" + std::to_string(layer), 32, 0.1);
    chain.add<torch::nn::Linear>("head", 32, 4000);
  }
  StepResult step(Pipeline& pipeline) const { return pipeline->train_step(input, target, test::cross_entropy); }

  LayerChain chain;
  at::Tensor input = torch::randn({64, 32});
  at::Tensor target = torch::randint(4000, {64}, torch::kLong);
};

TEST(PlanTest, AutoLeavesRoomForTheLoss) {
  const WideHead model;
  Pipeline measuring(model.chain,
                     PipelineOptions(2).num_micro_batches(8).recompute(Recompute::kAlways).measure_memory(true));
  model.step(measuring);
  std::int64_t limit = 0;
  for (const StageMemory& stage : model.step(measuring).memory) limit = std::max(limit, stage.peak_bytes);
  // From what always does, with the loss, up to more than enough: what is chosen fits.
  for (int step = 0; step < 5; ++step) {
    Pipeline pipeline(model.chain, PipelineOptions(2)
                                       .num_micro_batches(8)
                                       .recompute(Recompute::kAuto)
                                       .optimizer_slots(0)
                                       .memory_limit_bytes(limit + limit * (1 + 2 * step) / 16));
    for (int repeat = 0; repeat < 2; ++repeat) EXPECT_NO_THROW(model.step(pipeline)) << step;
  }
}

TEST(PlanTest, WithoutABalanceALimitThatCanBeKeptIsKept) {
  // The tables at the front are large and take no time: cut by time alone, all of them are on the first stage, with
  // more.
  LayerChain chain;
  chain.add<torch::nn::Embedding>("table", 20000, 64);
  for (int layer = 0; layer < 7; ++layer) chain.add<test::FeedForwardBlock>("block" + std::to_string(layer), 64, 0.0);
  const at::Tensor input = torch::randint(20000, {16, 8}, torch::kLong);
  const auto step = [&](Pipeline& pipeline) {
    return pipeline->train_step(input, input,
                                [](const at::Tensor& output, const at::Tensor&) { return output.pow(2).mean(); });
  };
  const auto peak_with = [&](const std::vector<int>& balance) {
    Pipeline pipeline(chain, PipelineOptions(2).num_micro_batches(4).balance(balance).measure_memory(true));
    step(pipeline);
    std::int64_t most = 0;
    for (const StageMemory& stage : step(pipeline).memory) most = std::max(most, stage.peak_bytes);
    return most;
  };
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int first = 1; first < chain.size(); ++first) least = std::min(least, peak_with({first, chain.size() - first}));
  Pipeline pipeline(chain,
                    PipelineOptions(2).num_micro_batches(4).optimizer_slots(0).memory_limit_bytes(least + least / 20));
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_NO_THROW(step(pipeline));
}

TEST(PlanTest, ALossThatThrowsIsReportedByTheStepItself) {
  const WideHead model;
  Pipeline pipeline(model.chain, PipelineOptions(2).num_micro_batches(4));
  int calls = 0;
  EXPECT_THAT(
      [&] {
        pipeline->train_step(model.input, model.target, [&](const at::Tensor&, const at::Tensor&) -> at::Tensor {
          ++calls;
          throw std::runtime_error("no such loss");
        });
      },
      ::testing::ThrowsMessage<ActionError>(AllOf(HasSubstr("no such loss"), Not(HasSubstr("trial run")))));
  EXPECT_GE(calls, 2);
}

TEST(PlanTest, AutoThatFitsNowhereSaysWhatIsMissing) {
  const test::TestModel model = test::transformer();
  Pipeline pipeline(model.chain,
                    PipelineOptions(3).num_micro_batches(4).recompute(Recompute::kAuto).memory_limit_bytes(3000));
  EXPECT_THROW(pipeline->train_step(model.input, model.target, model.loss), InfeasibleError);
}

TEST(PlanTest, ContradictionsAreRefused) {
  const test::TestModel model = test::mlp();
  EXPECT_THAT(
      [&] {
        Pipeline(model.chain, PipelineOptions(2).recompute(Recompute::kAuto).balance({8, 8}));
      },
      ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("leave out balance")));
  EXPECT_THAT([&] { Pipeline(model.chain, PipelineOptions(2).recompute_by_stage({Recompute::kAlways})); },
              ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("1 entries, but there are 2 stages")));
}

TEST(ProfileOnMetaTest, HasTheBytesOfTheCpuAndSecondsFromOperations) {
  LayerChain chain;
  chain.add<torch::nn::Embedding>("embedding", 11, 8);
  chain.add<test::FeedForwardBlock>("block0", 8, 0.1);
  chain.add<test::FeedForwardBlock>("block1", 8, 0.1);
  chain.add<torch::nn::Linear>("head", 8, 11);
  const at::Tensor input = torch::randint(11, {16, 5}, torch::kLong);
  ProfileOptions options;
  options.flops_per_second = 1e9;
  const Profile on_cpu = profile(chain, input, options);
  const Profile on_meta = profile(chain, at::empty(input.sizes(), input.options().device(at::kMeta)), options);
  ASSERT_EQ(on_meta.layers.size(), on_cpu.layers.size());
  EXPECT_EQ(on_meta.samples_per_micro_batch, 16);
  for (std::size_t layer = 0; layer < on_cpu.layers.size(); ++layer) {
    EXPECT_EQ(on_meta.layers[layer].activation_bytes, on_cpu.layers[layer].activation_bytes)
        << on_cpu.layers[layer].name;
    EXPECT_EQ(on_meta.layers[layer].kept_output_bytes, on_cpu.layers[layer].kept_output_bytes)
        << on_cpu.layers[layer].name;
    EXPECT_EQ(on_meta.layers[layer].deferred_bytes, on_cpu.layers[layer].deferred_bytes) << on_cpu.layers[layer].name;
    EXPECT_EQ(on_meta.layers[layer].deferred_output_bytes, on_cpu.layers[layer].deferred_output_bytes)
        << on_cpu.layers[layer].name;
    EXPECT_EQ(on_meta.layers[layer].parameter_bytes, on_cpu.layers[layer].parameter_bytes);
    EXPECT_NEAR(static_cast<double>(*on_meta.layers[layer].forward_working_bytes),
                static_cast<double>(*on_cpu.layers[layer].forward_working_bytes), 1024)
        << on_cpu.layers[layer].name;
    EXPECT_NEAR(static_cast<double>(*on_meta.layers[layer].backward_working_bytes),
                static_cast<double>(*on_cpu.layers[layer].backward_working_bytes), 1024)
        << on_cpu.layers[layer].name;
  }
  // The head: a product of [16 * 5, 8] and [8, 11] at 1e9 operations a second, two an element and one more for the
  // bias.
  EXPECT_NEAR(on_meta.layers.back().forward_seconds * 1e9, 16 * 5 * 11 * (2 * 8), 16 * 5 * 11 * 2);
}

}  // namespace
}  // namespace gpipe
