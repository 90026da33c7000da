// A pipeline that runs a plan, and one that makes it.
#include "gpipe/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/profiler.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/simulate/planner.h"
#include "tests/execute/test_models.h"

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

  const Tensors expected = trained_with(model, PipelineOptions(1).num_micro_batches(4));
  for (const Plan& chosen : {roomy, tight, recomputing}) {
    Pipeline pipeline(model.chain, PipelineOptions(chosen));
    EXPECT_EQ(pipeline->layers_per_stage(), chosen.layers_per_stage);
    EXPECT_EQ(pipeline->rematerialization(), chosen.rematerialization);
    const Tensors got = trained_with(model, PipelineOptions(chosen));
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t index = 0; index < got.size(); ++index)
      EXPECT_TRUE(torch::equal(got[index], expected[index])) << index;
  }
}

TEST(PlanTest, AutoDropsOnlyWhatTheMemoryLimitAsksFor) {
  const test::TestModel model = test::transformer();
  const PipelineOptions options =
      PipelineOptions(3).num_micro_batches(4).recompute(Recompute::kAuto).optimizer_slots(0);
  Pipeline roomy(model.chain, options);
  roomy->train_step(model.input, model.target, model.loss);
  EXPECT_THAT(roomy->recompute_by_stage(), Each(Recompute::kNever));

  // The loss is not in the profile of the first batch: some room for it.
  const std::int64_t limit = least_bytes_without_recompute(model) - 1;
  Pipeline tight(model.chain, PipelineOptions(options).memory_limit_bytes(limit));
  tight->train_step(model.input, model.target, model.loss);
  // Which of the two is faster depends on the seconds that were measured.
  EXPECT_TRUE(tight->recompute_by_stage() != roomy->recompute_by_stage() || !tight->rematerialization().empty());

  const Tensors expected = trained_with(model, PipelineOptions(1).num_micro_batches(4));
  const Tensors got = trained_with(model, PipelineOptions(options).memory_limit_bytes(limit));
  for (std::size_t index = 0; index < got.size(); ++index) {
    EXPECT_TRUE(torch::equal(got[index], expected[index])) << index;
  }
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
    EXPECT_EQ(on_meta.layers[layer].parameter_bytes, on_cpu.layers[layer].parameter_bytes);
    EXPECT_NEAR(static_cast<double>(*on_meta.layers[layer].forward_working_bytes),
                static_cast<double>(*on_cpu.layers[layer].forward_working_bytes), 1024)
        << on_cpu.layers[layer].name;
    EXPECT_NEAR(static_cast<double>(*on_meta.layers[layer].backward_working_bytes),
                static_cast<double>(*on_cpu.layers[layer].backward_working_bytes), 1024)
        << on_cpu.layers[layer].name;
  }
  // The head: a product of [16 * 5, 8] and [8, 11] at 1e9 operations a second, two an element and one more for the bias.
  EXPECT_NEAR(on_meta.layers.back().forward_seconds * 1e9, 16 * 5 * 11 * (2 * 8), 16 * 5 * 11 * 2);
}

}  // namespace
}  // namespace gpipe
