// What a plain run takes for granted: modes, memory and settings that change under the pipeline's feet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <memory>
#include <set>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/autocast.h"
#include "gpipe/model/skip.h"
#include "tests/execute/plain_chain.h"
#include "tests/execute/test_models.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using test::expect_same_bits;
using test::PlainChain;
using test::PopAndConcatenate;
using test::Stash;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

PipelineImpl::Loss squared_error() {
  return [](const Tensors& outputs, const Tensors& targets) { return torch::mse_loss(outputs[0], targets[0]); };
}

class HiddenState : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    torch::manual_seed(4);
    input = torch::randn({8, 4});
    target = torch::randn({8, 4});
  }
  at::Tensor input;
  at::Tensor target;
};

LayerChain linears() {
  return LayerChain().add<Linear>("a", 4, 4).add<torch::nn::Tanh>("b").add<Linear>("c", 4, 4).add<Linear>("d", 4, 4);
}

struct Autocast {
  Autocast() {
    autocast::set_dtype(at::kCPU, at::kBFloat16);
    autocast::set_enabled(at::kCPU, true);
  }
  ~Autocast() {
    autocast::set_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

TEST_F(HiddenState, ARecomputeAfterTheEndOfAutocastRunsInTheTypesOfItsForward) {
  const auto options = PipelineOptions(2).num_micro_batches(4).balance({2, 2});
  PlainChain plain(linears(), options);
  for (const MicroBatch& part : split_batch({input, target}, 4)) {
    Tensors outputs;
    {
      const Autocast autocast;
      at::autocast::set_autocast_cache_enabled(false);
      outputs = plain.forward({part.tensors[0]}, {});
    }
    ((outputs[0].to(at::kFloat) - part.tensors[1]).pow(2).mean() * 0.25).backward();
  }
  for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
    auto with_recompute = options;
    Pipeline pipeline(linears(), with_recompute.recompute(recompute));
    at::Tensor output;
    {
      const Autocast autocast;
      output = pipeline->forward(input);
    }
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    (output.to(at::kFloat) - target).pow(2).mean().backward();
    for (const auto& item : plain.model().named_parameters()) {
      const at::Tensor got = pipeline->named_parameters()[item.key()].grad();
      EXPECT_TRUE(torch::allclose(got, item.value().grad(), 1e-2, 1e-4)) << item.key();
    }
  }
}

TEST_F(HiddenState, UnderAutocastEveryRecomputeModeTrainsTheSameBits) {
  std::vector<Tensors> gradients;
  for (const int stages : {1, 2, 4}) {
    for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
      Pipeline pipeline(linears(), PipelineOptions(stages).num_micro_batches(4).recompute(recompute));
      {
        const Autocast autocast;
        pipeline->train_step(input, target, [](const at::Tensor& output, const at::Tensor& wanted) {
          return torch::mse_loss(output.to(at::kFloat), wanted);
        });
      }
      Tensors grads;
      for (const at::Tensor& parameter : pipeline->parameters()) grads.push_back(parameter.grad());
      gradients.push_back(grads);
      for (std::size_t index = 0; index < grads.size(); ++index) {
        EXPECT_TRUE(test::same_bits(grads[index], gradients.front()[index])) << stages << " " << name(recompute);
      }
    }
  }
}

LayerChain chain_with_skip() {
  return LayerChain()
      .add<torch::nn::Dropout>("drop", torch::nn::DropoutOptions(0.5).inplace(true))
      .add<Linear>("a", 4, 4)
      .add<Stash>("stash")
      .add<Linear>("b", 4, 4)
      .add<PopAndConcatenate>("pop")
      .add<Linear>("c", 8, 4);
}

// Notes by which settings of the caller each forward runs: the first is that of the profile.
struct SettingsWitnessImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    types.push_back(autocast::dtype(at::kCUDA));
    tiny.push_back(torch::full({}, 1e-20F) * torch::full({}, 1e-20F));
    return x;
  }
  std::vector<at::ScalarType> types;
  Tensors tiny;  // denormal: zero where those are flushed
};

TEST_F(HiddenState, TheProfileOfTheFirstBatchRunsByTheSettingsOfTheCaller) {
  const auto witness = std::make_shared<SettingsWitnessImpl>();
  torch::nn::Sequential model(Linear(4, 4), witness, Linear(4, 4));
  Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(2));
  const at::ScalarType type_before = autocast::dtype(at::kCUDA);  // any device's will do; the CPU has no other one
  ASSERT_NE(type_before, at::kBFloat16);
  autocast::set_dtype(at::kCUDA, at::kBFloat16);
  const bool can_flush = at::globalContext().setFlushDenormal(true);
  pipeline->train_step(input, target, torch::nn::MSELoss());
  at::globalContext().setFlushDenormal(false);
  autocast::set_dtype(at::kCUDA, type_before);
  ASSERT_TRUE(can_flush);
  ASSERT_GT(witness->types.size(), 2U) << "without a profile there are the forwards of two micro-batches only";
  EXPECT_THAT(witness->types, Each(at::kBFloat16));
  for (const at::Tensor& tiny : witness->tiny) EXPECT_EQ(tiny.item<float>(), 0);
}

TEST_F(HiddenState, ASkipThatIsMetInTheFirstStepDoesNotLetTheFirstLayerWriteTwiceOnTheBatch) {
  const auto options = PipelineOptions(3).num_micro_batches(4).balance({2, 2, 2});
  PlainChain plain(chain_with_skip(), options);
  Pipeline pipeline(chain_with_skip(), options);
  const at::Tensor expected = plain.train_step({input.clone()}, {target}, squared_error());
  expect_same_bits(pipeline->train_step(Tensors{input.clone()}, Tensors{target}, squared_error()).loss, expected,
                   "loss");
  expect_same_bits(*pipeline, plain.model());
}

TEST_F(HiddenState, SkipsThatAreFoundAfterAFailedStepHoldForEveryNumberOfMicroBatches) {
  Pipeline pipeline(chain_with_skip(), PipelineOptions(3).num_micro_batches(4).balance({2, 2, 2}));
  EXPECT_THROW(pipeline->train_step(torch::randn({8, 5}), target, torch::nn::MSELoss()), ActionError);
  EXPECT_NO_THROW(pipeline->train_step(input.narrow(0, 0, 3), target.narrow(0, 0, 3), torch::nn::MSELoss()));
  EXPECT_NO_THROW(pipeline->train_step(input, target, torch::nn::MSELoss()));
}

TEST_F(HiddenState, BatchNormThatIsSwitchedOnLaterIsStillCountedOnce) {
  const auto make = [] {
    return LayerChain().add<Linear>("a", 4, 4).add<torch::nn::BatchNorm1d>("norm", 4).add<Linear>("b", 4, 4);
  };
  const auto options = PipelineOptions(2).num_micro_batches(4).balance({2, 1}).recompute(Recompute::kAlways);
  PlainChain plain(make(), options);
  Pipeline pipeline(make(), options);
  for (const bool training : {false, true}) {
    for (torch::nn::Module* model : {&plain.model(), static_cast<torch::nn::Module*>(pipeline.get())}) {
      model->named_children()["norm"]->train(training);
    }
    plain.train_step({input}, {target}, squared_error());
    pipeline->train_step(Tensors{input}, Tensors{target}, squared_error());
    expect_same_bits(*pipeline, plain.model());
  }
}

TEST_F(HiddenState, AFailedStepLeavesBuffersAsTheyWere) {
  Pipeline pipeline(LayerChain().add<torch::nn::BatchNorm1d>("norm", 4).add<Linear>("b", 4, 4),
                    PipelineOptions(2).num_micro_batches(4).balance({1, 1}));
  pipeline->train_step(input, target, torch::nn::MSELoss());
  Tensors before;
  for (const at::Tensor& buffer : pipeline->buffers()) before.push_back(buffer.clone());
  EXPECT_THROW(pipeline->train_step(input, target.narrow(1, 0, 3), torch::nn::MSELoss()), ActionError);
  for (std::size_t index = 0; index < before.size(); ++index) {
    EXPECT_TRUE(test::same_bits(pipeline->buffers()[index], before[index])) << index;
  }
}

TEST_F(HiddenState, ABatchThatIsOverwrittenBeforeItsBackwardIsNoticed) {
  Pipeline pipeline(linears(), PipelineOptions(2).num_micro_batches(4).balance({2, 2}));
  for (int step = 0; step < 2; ++step) {
    const at::Tensor output = pipeline->forward(input);
    input.add_(1);
    EXPECT_THAT([&] { output.sum().backward(); }, ThrowsMessage<InvalidArgument>(HasSubstr("changed in place")));
  }
}

// Passes its input on beside what it makes of it.
struct PassOnImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input) { return {input, linear(at::relu(input))}; }
  Linear linear = register_module("linear", Linear(4, 4));
};
TORCH_MODULE(PassOn);

struct WriteOnImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor kept, const at::Tensor& made) { return linear(kept.mul_(2)) + made; }
  Linear linear = register_module("linear", Linear(4, 4));
};
TORCH_MODULE(WriteOn);

TEST_F(HiddenState, ARecomputeNeverReadsWhatALaterStageHasWrittenOn) {
  const auto make = [] { return LayerChain().add<Linear>("a", 4, 4).add<PassOn>("pass").add<WriteOn>("write"); };
  const auto options = PipelineOptions(3).num_micro_batches(4).balance({1, 1, 1}).recompute(Recompute::kAlways);
  PlainChain plain(make(), options);
  plain.train_step({input}, {target}, squared_error());
  // A recompute does not wait for the later stage: it may come before the write, and is right, or after it, and says
  // so.
  for (int repeat = 0; repeat < 20; ++repeat) {
    Pipeline pipeline(make(), options);
    try {
      pipeline->train_step(Tensors{input}, Tensors{target}, squared_error());
    } catch (const ActionError& error) {
      EXPECT_THAT(error.what(), HasSubstr("in place"));
      continue;
    }
    expect_same_bits(*pipeline, plain.model());
  }
}

struct PopAndWriteImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return pop("skip").add_(input); }
};
TORCH_MODULE(PopAndWrite);

TEST_F(HiddenState, APoppedTensorMayBeWrittenOnInEveryRecomputeMode) {
  const auto make = [] {
    return LayerChain()
        .add<Linear>("a", 4, 4)
        .add<torch::nn::ReLU>("relu", torch::nn::ReLUOptions(true))
        .add<Linear>("b", 4, 4)
        .add<Stash>("stash")
        .add<torch::nn::ReLU>("no_trace_of_its_input")
        .add<Linear>("c", 4, 4)
        .add<PopAndWrite>("pop")
        .add<Linear>("d", 4, 4);
  };
  std::vector<at::Tensor> losses;
  for (const Recompute recompute : {Recompute::kNever, Recompute::kAlways}) {
    Pipeline pipeline(make(), PipelineOptions(2).num_micro_batches(4).balance({6, 2}).recompute(recompute));
    losses.push_back(pipeline->train_step(input, target, torch::nn::MSELoss()).loss);
    losses.push_back(pipeline->parameters()[0].grad());
  }
  expect_same_bits(losses[2], losses[0], "loss");
  expect_same_bits(losses[3], losses[1], "gradient");
}

TEST_F(HiddenState, AGraphOfTheBackwardAndGradOfChosenTensorsAreRefused) {
  Pipeline pipeline(linears(), PipelineOptions(2).num_micro_batches(4).balance({2, 2}));
  input.requires_grad_(true);
  const at::Tensor loss = pipeline->forward(input).sum();
  EXPECT_THAT([&] { loss.backward({}, true, /*create_graph=*/true); }, ThrowsMessage<Error>(HasSubstr("create_graph")));
  EXPECT_THAT([&] { torch::autograd::grad({pipeline->forward(input).sum()}, {input}); },
              ThrowsMessage<Error>(HasSubstr("autograd::grad")));
  for (const at::Tensor& parameter : pipeline->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST_F(HiddenState, AModuleWithBuffersInTwoLayersIsRefused) {
  torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(4).affine(false));
  torch::nn::Sequential model(norm, Linear(4, 4), norm);
  EXPECT_THAT(
      [&] {
        Pipeline(model, PipelineOptions(2).balance({1, 2}));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("running_mean")));
}

TEST_F(HiddenState, TheLayersAreTheUsersAgainAfterAPipelineWithTies) {
  torch::nn::Sequential model(Linear(4, 4), Linear(4, 4));
  LayerChain chain(model);
  chain.tie("0.weight", "1.weight");
  for (int repeat = 0; repeat < 2; ++repeat) {
    Pipeline pipeline(chain, PipelineOptions(2).num_micro_batches(2).balance({1, 1}));
    EXPECT_EQ(pipeline->parameters().size(), 3U);
    pipeline->train_step(input, target, torch::nn::MSELoss());
  }
  EXPECT_EQ(model->parameters().size(), 4U);
  const auto parameters = model->named_parameters();
  EXPECT_TRUE(test::same_bits(parameters["0.weight"], parameters["1.weight"]));
  EXPECT_NE(parameters["0.weight"].data_ptr(), parameters["1.weight"].data_ptr());
}

TEST_F(HiddenState, AWatchdogOfThePipelineNamesTheLayer) {
  struct StuckImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      is_noticed.wait();
      return x;
    }
    std::shared_future<void> is_noticed;
  };
  std::promise<void> noticed;
  const auto stuck = std::make_shared<StuckImpl>();
  stuck->is_noticed = noticed.get_future().share();
  torch::nn::Sequential model(Linear(4, 4), stuck, Linear(4, 4));
  Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(2).balance({1, 2}).watchdog_seconds(0.4).on_stuck(
                               [&](const StuckError&) { noticed.set_value(); }));
  EXPECT_THAT([&] { pipeline->train_step(input, target, torch::nn::MSELoss()); },
              ThrowsMessage<StuckError>(HasSubstr("worker 1 is in 1F0, layer 1 (1)")));
}

TEST_F(HiddenState, ActivationsCrossABoundaryWithoutACopy) {
  struct WitnessImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      pointers.insert(x.data_ptr());
      return x;
    }
    std::set<void*> pointers;
  };
  const auto first = std::make_shared<WitnessImpl>();
  const auto second = std::make_shared<WitnessImpl>();
  torch::nn::Sequential model(Linear(4, 4), first, second, Linear(4, 4));
  Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(1).balance({2, 2}));
  pipeline->train_step(input, target, torch::nn::MSELoss());
  EXPECT_EQ(first->pointers, second->pointers);
}

}  // namespace
}  // namespace gpipe
