#include "gpipe/model/profiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ctime>
#include <thread>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/busy_neighbours.h"
#include "gpipe/model/sandbox.h"
#include "tests/execute/test_models.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ProfilerTest, LeavesParametersGradientsBuffersModeAndRandomStateAsTheyWere) {
  torch::manual_seed(5);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)), torch::nn::BatchNorm2d(3),
                              nn::DeferredBatchNorm2d(torch::nn::BatchNormOptions(3)),
                              torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::Dropout(0.5));
  std::vector<ChainLayer> layers;
  const LayerChain chain(model);
  for (int layer = 0; layer < chain.size(); ++layer)
    layers.push_back({layer, chain.name(layer), chain.build(layer, 0)});
  for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad() = torch::randn_like(parameter);
  const auto state = [&] {
    Tensors tensors;
    for (const at::Tensor& parameter : model->parameters()) {
      tensors.push_back(parameter.detach().clone());
      tensors.push_back(parameter.grad().clone());
    }
    for (const at::Tensor& buffer : model->buffers()) tensors.push_back(buffer.clone());
    return tensors;
  };
  const at::Tensor input = torch::randn({4, 2, 6, 6});
  const at::Tensor input_before = input.clone();
  const Tensors expected = state();
  const at::Tensor random = at::detail::getDefaultCPUGenerator().get_state();

  profile(chain, input);

  const Tensors got = state();
  for (std::size_t index = 0; index < got.size(); ++index)
    EXPECT_TRUE(test::same_bits(got[index], expected[index])) << index;
  EXPECT_TRUE(test::same_bits(at::detail::getDefaultCPUGenerator().get_state(), random));
  EXPECT_TRUE(test::same_bits(input, input_before));
  EXPECT_TRUE(model->is_training());
  for (auto* listener : detail::find_listeners(layers)) listener->end_step();
  EXPECT_TRUE(test::same_bits(model->buffers().back(), expected.back()));  // nothing was left pending
}

TEST(ProfilerTest, MeasuresSecondsBytesAndSkips) {
  const test::TestModel model = test::unet();
  const Profile profile = gpipe::profile(model.chain, model.input);
  ASSERT_EQ(profile.layers.size(), static_cast<std::size_t>(model.chain.size()));
  EXPECT_EQ(profile.layers[0].name, "embed");
  EXPECT_EQ(profile.layers[0].parameter_bytes, (4 * 3 + 4) * 4);
  EXPECT_EQ(profile.layers[0].output_bytes, 16 * 4 * 64 * 4);
  EXPECT_GE(profile.layers[0].activation_bytes, profile.layers[0].output_bytes);
  for (const LayerProfile& layer : profile.layers) {
    EXPECT_GT(layer.forward_seconds, 0) << layer.name;
    EXPECT_GT(layer.backward_seconds, 0) << layer.name;
  }
  ASSERT_EQ(profile.skips.size(), 2);
  EXPECT_EQ(profile.skips[0].name, "level1/skip");
  EXPECT_EQ(profile.layers[profile.skips[0].from].name, "stash1");
  EXPECT_EQ(profile.layers[profile.skips[0].to].name, "pop1");
  EXPECT_EQ(profile.skips[0].bytes, 16 * 4 * 64 * 4);
  EXPECT_NO_THROW(check_profile(profile));
}

// A layer as dear as it is told to be.
struct BusyImpl : torch::nn::Module {
  explicit BusyImpl(int repeats) : repeats_(repeats), weight(register_parameter("weight", torch::randn({96, 96}))) {}
  at::Tensor forward(at::Tensor input) {
    for (int repeat = 0; repeat < repeats_; ++repeat) input = at::tanh(at::mm(input, weight));
    return input;
  }
  int repeats_;
  at::Tensor weight;
};
TORCH_MODULE(Busy);

TEST(ProfilerTest, ALayerThatWorksInPlaceHasTheInputGradientOfOneThatDoesNot) {
  const at::Tensor input = torch::zeros({4, 8}, torch::kMeta);
  for (const bool in_place : {false, true}) {
    LayerChain chain;
    chain.add<torch::nn::Linear>("linear", 8, 8);
    chain.add<torch::nn::ReLU>("relu", torch::nn::ReLUOptions(in_place));
    const LayerProfile relu = gpipe::profile(chain, input).layers[1];
    EXPECT_GT(relu.backward_seconds, 0) << in_place;
    EXPECT_EQ(relu.input_grad_seconds, relu.backward_seconds) << in_place;
  }
}

TEST(ProfilerTest, InputsOfProductsAndGradientsOfTheirOutputsAreDeferred) {
  LayerChain chain;
  chain.add<torch::nn::Linear>("first", 8, 8);
  chain.add<torch::nn::Tanh>("tanh");
  chain.add<torch::nn::Flatten>("view");
  chain.add<torch::nn::Linear>("second", torch::nn::LinearOptions(8, 8).bias(false));
  constexpr std::int64_t kTensor = 4 * 8 * 4;
  ProfileOptions options;
  const std::vector<LayerProfile> layers = gpipe::profile(chain, torch::randn({4, 8}), options).layers;
  EXPECT_EQ(layers[0].deferred_bytes, kTensor);  // the micro-batch itself counts nowhere
  EXPECT_EQ(layers[0].deferred_output_bytes, 0);
  EXPECT_EQ(layers[1].deferred_bytes, kTensor);  // for the second, through the view
  EXPECT_EQ(layers[1].deferred_output_bytes, kTensor);
  EXPECT_EQ(layers[2].deferred_bytes, 0);
  EXPECT_EQ(layers[2].deferred_output_bytes, kTensor);
  EXPECT_EQ(layers[3].deferred_bytes, kTensor);
  EXPECT_EQ(layers[3].deferred_output_bytes, 0);
  EXPECT_EQ(layers[3].input_grad_working_bytes, 2 * kTensor);  // the gradients of output and input
  EXPECT_EQ(layers[3].weight_grad_working_bytes, kTensor + 8 * 8 * 4);
  options.deferred_weights = DeferredWeights::kNone;
  for (const LayerProfile& layer : gpipe::profile(chain, torch::randn({4, 8}), options).layers) {
    EXPECT_EQ(layer.deferred_bytes, 0) << layer.name;
    EXPECT_EQ(layer.input_grad_working_bytes, layer.backward_working_bytes) << layer.name;
  }
  options.count_bytes = false;
  EXPECT_FALSE(has_deferred_bytes(gpipe::profile(chain, torch::randn({4, 8}), options).layers));
}

// What it multiplies does not depend on its input.
struct OwnProductImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input + at::mm(weight, weight).mean(); }
  at::Tensor weight = register_parameter("weight", torch::randn({64, 64}));
};
TORCH_MODULE(OwnProduct);

// On Meta tensors seconds are counted, and always the same.
TEST(ProfilerTest, TellsWhatALayerCostsHoweverSmallItsInput) {
  LayerChain chain;
  chain.add<torch::nn::Linear>("linear", 8, 8);
  chain.add<OwnProduct>("own");
  ProfileOptions options;
  options.loss = [](const Tensors& outputs) {
    EXPECT_GT(outputs.front().size(0), 100);  // it is not asked for a part
    return outputs.front().mean();
  };
  for (const int rows : {200, 201}) {
    const at::Tensor sample = torch::empty({rows, 8}, torch::kMeta);
    options.fixed_seconds = false;
    const Profile without = gpipe::profile(chain, sample, options);
    options.fixed_seconds = true;
    const Profile profile = gpipe::profile(chain, sample, options);
    EXPECT_NO_THROW(check_profile(profile));
    const LayerProfile& linear = profile.layers[0];
    const LayerProfile& own = profile.layers[1];
    EXPECT_LT(*linear.fixed_forward_seconds, 0.01 * linear.forward_seconds);
    EXPECT_LT(*linear.fixed_backward_seconds, 0.1 * linear.backward_seconds);
    EXPECT_GT(*own.fixed_forward_seconds, 0.9 * own.forward_seconds);
    EXPECT_GT(*own.fixed_backward_seconds, 0.9 * own.backward_seconds);
    for (std::size_t layer = 0; layer < profile.layers.size(); ++layer) {
      EXPECT_EQ(profile.layers[layer].forward_seconds, without.layers[layer].forward_seconds);
      EXPECT_EQ(profile.layers[layer].backward_seconds, without.layers[layer].backward_seconds);
      EXPECT_EQ(without.layers[layer].fixed_forward_seconds, std::nullopt);
      EXPECT_EQ(without.layers[layer].fixed_backward_seconds, std::nullopt);
    }
  }
}

// As a batch norm refuses a single row.
struct FourRowsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    TORCH_CHECK(input.size(0) == 4, "not four rows");
    return input * weight;
  }
  at::Tensor weight = register_parameter("weight", torch::ones({8}));
};
TORCH_MODULE(FourRows);

TEST(ProfilerTest, AModelThatRefusesHalfOfTheSampleHasNoFixedSeconds) {
  LayerChain chain;
  chain.add<torch::nn::Linear>("linear", 8, 8);
  chain.add<FourRows>("four");
  ProfileOptions options;
  options.fixed_seconds = true;
  const Profile profile = gpipe::profile(chain, torch::randn({4, 8}), options);
  for (const LayerProfile& layer : profile.layers) {
    EXPECT_GT(layer.forward_seconds, 0);
    EXPECT_EQ(layer.fixed_forward_seconds, std::nullopt) << layer.name;
    EXPECT_EQ(layer.fixed_backward_seconds, std::nullopt) << layer.name;
  }
}

TEST(ProfilerTest, FixedSecondsOfASingleRowAreRefused) {
  LayerChain chain;
  chain.add<torch::nn::Linear>("linear", 8, 8);
  ProfileOptions options;
  options.fixed_seconds = true;
  EXPECT_THAT(
      [&] {
        gpipe::profile(chain, torch::randn({1, 8}), options);
      },
      ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("give it 2 or more, or leave fixed_seconds out")));
}

// Adds its second input, which is the same for every micro-batch.
struct PlusImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input, const at::Tensor& added) { return at::mm(input, weight) + added; }
  at::Tensor weight = register_parameter("weight", torch::randn({8, 8}));
};
TORCH_MODULE(Plus);

TEST(ProfilerTest, APipelineMeasuresFixedSecondsIfItIsAskedTo) {
  for (const bool is_asked : {false, true}) {
    LayerChain chain;
    chain.add<Plus>("plus");
    chain.add<torch::nn::Linear>("head", 8, 8);
    Pipeline pipeline(chain,
                      PipelineOptions(2).num_micro_batches(2).replicated_inputs({1}).profile_fixed_seconds(is_asked));
    pipeline->train_step(Tensors{torch::randn({8, 8}), torch::randn({8})}, Tensors{torch::ones({8})},
                         [](const Tensors& outputs, const Tensors&) { return LossValue(outputs.front().mean()); });
    ASSERT_EQ(pipeline->profile().layers.size(), 2U);
    for (const LayerProfile& layer : pipeline->profile().layers) {
      EXPECT_EQ(layer.fixed_forward_seconds.has_value(), is_asked) << layer.name;
      EXPECT_EQ(layer.fixed_backward_seconds.has_value(), is_asked) << layer.name;
    }
  }
}

TEST(ProfilerTest, NumbersThatMakeNoSenseAreRefused) {
  const test::TestModel model = test::mlp();
  const auto refusal = [&](const ProfileOptions& options) {
    EXPECT_THROW(gpipe::profile(model.chain, model.input, options), InvalidArgument);
  };
  ProfileOptions options;
  options.repeats = 0;
  refusal(options);
  options = {};
  options.flops_per_second = 0;
  refusal(options);
  options = {};
  options.loss = [](const Tensors& outputs) { return outputs.front(); };
  refusal(options);
}

TEST(ProfilerTest, BusyNeighboursChangeNothingButSeconds) {
  const test::TestModel model = test::unet();
  const Profile alone = gpipe::profile(model.chain, model.input);
  ProfileOptions options;
  options.busy_neighbours = 2;
  const Profile busy = gpipe::profile(model.chain, model.input, options);
  ASSERT_EQ(busy.layers.size(), alone.layers.size());
  for (std::size_t layer = 0; layer < alone.layers.size(); ++layer) {
    EXPECT_GT(busy.layers[layer].forward_seconds, 0);
    EXPECT_EQ(busy.layers[layer].activation_bytes, alone.layers[layer].activation_bytes);
  }
  options.busy_neighbours = -1;
  EXPECT_THROW(gpipe::profile(model.chain, model.input, options), InvalidArgument);
}

// A thread that is at work gets on; that it does so is all there is to see from outside.
TEST(BusyNeighboursTest, AreAtWorkWhileTheyLive) {
  const auto process_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  timespec own{};
  const auto own_seconds = [&] {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &own);
    return static_cast<double>(own.tv_sec) + 1e-9 * static_cast<double>(own.tv_nsec);
  };
  const detail::BusyNeighbours neighbours(1);
  const double others_before = process_seconds() - own_seconds();
  while (process_seconds() - own_seconds() < others_before + 0.02) std::this_thread::yield();
}

TEST(ProfilerTest, WithoutABalanceThePipelineIsSplitByWhatTheLayersCost) {
  LayerChain chain;
  chain.add<Busy>("dear", 30);
  for (int layer = 0; layer < 6; ++layer) chain.add<Busy>("cheap" + std::to_string(layer), 1);
  Pipeline pipeline(chain, PipelineOptions(2).num_micro_batches(4));
  EXPECT_TRUE(pipeline->layers_per_stage().empty());
  pipeline->train_step(torch::randn({128, 96}), torch::ones({128}),
                       [](const at::Tensor& output, const at::Tensor&) { return output.mean(); });
  EXPECT_THAT(pipeline->layers_per_stage(), ElementsAre(1, 6));
  EXPECT_EQ(pipeline->profile().layers.size(), 7);
}

TEST(ProfilerTest, AThrowOnTheFirstBatchHasItsCoordinatesAndTheNextBatchWorks) {
  torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Linear(3, 2));
  Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(2));
  const auto loss = [](const at::Tensor& output, const at::Tensor&) { return output.mean(); };
  EXPECT_THAT(
      [&] {
        pipeline->train_step(torch::ones({4, 5}), torch::ones({4}), loss);
      },
      ::testing::ThrowsMessage<ActionError>(HasSubstr("layer 0 (0)")));
  EXPECT_NO_THROW(pipeline->train_step(torch::ones({4, 3}), torch::ones({4}), loss));
}

}  // namespace
}  // namespace gpipe
