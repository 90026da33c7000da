// Layers that drop their activations and are run again: the same bits, less memory, and only as often as they should.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/autocast.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/profiler.h"
#include "gpipe/plan/rematerialize.h"
#include "tests/execute/plain_chain.h"
#include "tests/execute/rematerializations.h"
#include "tests/execute/test_models.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using test::TestModel;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::ReLUOptions;

constexpr int kNumSteps = 2;

using Values = std::map<std::string, at::Tensor>;

void add_state(const torch::nn::Module& model, Values& values) {
  for (const auto& item : model.named_parameters()) {
    values[item.key()] = item.value().detach().clone();
    values["gradient of " + item.key()] = item.value().grad().defined() ? item.value().grad().clone() : at::Tensor();
  }
  for (const auto& item : model.named_buffers()) values[item.key()] = item.value().clone();
}

// Losses, parameters, gradients and buffers.
Values trained(const TestModel& model, PipelineOptions options) {
  Pipeline pipeline(model.chain, options.num_micro_batches(4).seed(7));
  torch::optim::Adam optimizer(pipeline->parameters(), torch::optim::AdamOptions(0.01));
  Values values;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    values["loss " + std::to_string(step)] =
        pipeline->train_step(model.input.clone(), model.target, model.loss).loss.clone();
    optimizer.step();
  }
  add_state(*pipeline, values);
  return values;
}

// The same of the plain model.
Values values_of_plain_training(const TestModel& model) {
  at::set_num_threads(1);  // as the stages have
  test::PlainChain plain(model.chain, PipelineOptions(1).num_micro_batches(4).seed(7));
  torch::optim::Adam optimizer(plain.model().parameters(), torch::optim::AdamOptions(0.01));
  Values values;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    values["loss " + std::to_string(step)] = plain.train_step({model.input.clone()}, {model.target}, loss_of(model));
    optimizer.step();
  }
  add_state(plain.model(), values);
  return values;
}

std::vector<int> even_balance(int num_layers, int num_stages) {
  std::vector<int> balance(num_stages, num_layers / num_stages);
  balance.back() += num_layers % num_stages;
  return balance;
}

std::vector<Rematerialization> for_each_stage(const std::vector<int>& balance,
                                              const std::function<Rematerialization(int)>& make) {
  std::vector<Rematerialization> result;
  for (const int num_layers : balance) result.push_back(make(num_layers));
  return result;
}

std::string text_of(const std::vector<Rematerialization>& by_stage) {
  std::string text;
  for (const Rematerialization& runs : by_stage) text += " [" + to_text(runs) + "]";
  return text;
}

// None, one run, the whole stage, nested ones, several, and some by chance.
std::vector<std::vector<Rematerialization>> grid(const std::vector<int>& balance) {
  std::mt19937 random(11);
  std::vector<std::vector<Rematerialization>> tried;
  const auto add = [&](const std::function<Rematerialization(int)>& make) {
    tried.push_back(for_each_stage(balance, make));
  };
  add([](int) { return Rematerialization(); });
  add([](int) { return parse_rematerialization("1-2"); });
  add([](int num_layers) { return Rematerialization{{0, num_layers}}; });
  add([](int num_layers) { return Rematerialization{{0, num_layers, {{1, num_layers, {{2, 4}}}}}}; });
  add([](int) { return parse_rematerialization("0-0,2-4{2-2,4-4}"); });
  add(test::layer_by_layer);
  add(test::all_the_way);
  for (int count = 0; count < 3; ++count) {
    add([&](int num_layers) { return test::random_runs(0, num_layers, random); });
  }
  return tried;
}

void expect_transparent(const TestModel& model) {
  const Values expected = values_of_plain_training(model);
  for (const int num_stages : {1, 2}) {
    const std::vector<int> balance = even_balance(model.chain.size(), num_stages);
    for (const auto& rematerialization : grid(balance)) {
      for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
        for (const Recompute recompute : {Recompute::kNever, Recompute::kAlways}) {
          if (num_stages == 1 && std::string(schedule) == "1f1b") continue;
          SCOPED_TRACE(model.name + text_of(rematerialization) + ", " + schedule + ", recompute " + name(recompute));
          test::expect_same_values(trained(model, PipelineOptions(num_stages)
                                                      .schedule(schedule)
                                                      .recompute(recompute)
                                                      .balance(balance)
                                                      .rematerialization(rematerialization)),
                                   expected);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(RematerializationTest, OfDropoutAndLayersThatWorkInPlaceHasTheSameBits) {
  torch::manual_seed(1);
  expect_transparent(test::mlp());
}

TEST(RematerializationTest, OfDeferredBatchNormHasTheSameBits) {
  torch::manual_seed(1);
  expect_transparent(test::cnn());
}

TEST(RematerializationTest, OfATransformerHasTheSameBits) {
  torch::manual_seed(1);
  expect_transparent(test::transformer());
}

TEST(RematerializationTest, OfSkipsAndTiedWeightsHasTheSameBits) {
  torch::manual_seed(1);
  expect_transparent(test::unet());
}

// The running statistics change with every micro-batch, and must not with every forward.
TEST(RematerializationTest, OfPlainBatchNormHasTheSameBits) {
  torch::manual_seed(1);
  TestModel model{"batch norm", {}, torch::randn({16, 6}), torch::randint(5, {16}, torch::kLong), test::cross_entropy};
  for (int block = 0; block < 4; ++block) {
    const std::string number = std::to_string(block);
    model.chain.add<Linear>("linear" + number, block == 0 ? 6 : 8, 8);
    model.chain.add<torch::nn::BatchNorm1d>("norm" + number, 8);
    model.chain.add<ReLU>("relu" + number, ReLUOptions(true));
  }
  model.chain.add<Linear>("head", 8, 5);
  expect_transparent(model);
}

// Half of a tensor, whose elements have gaps between them.
struct HalfImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input.narrow(1, 0, input.size(1) / 2); }
};
TORCH_MODULE(Half);

struct IdentityImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input.view_as(input); }
};
TORCH_MODULE(Identity);

// Its weight needs no gradient.
struct FrozenImpl : torch::nn::Module {
  FrozenImpl() { linear->weight.set_requires_grad(false), linear->bias.set_requires_grad(false); }
  at::Tensor forward(const at::Tensor& input) { return linear(input); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(6, 8));
};
TORCH_MODULE(Frozen);

// The first two layers need no gradient at all; inputs are handed on by views and changed behind them.
TEST(RematerializationTest, OfFrozenLayersAndViewsThatAreChangedHasTheSameBits) {
  torch::manual_seed(1);
  TestModel model{"views", {}, torch::randn({16, 6}), torch::randn({16, 4}), test::squared_error};
  model.chain.add<Frozen>("frozen");
  model.chain.add<ReLU>("relu0", ReLUOptions(true));
  model.chain.add<Linear>("linear0", 8, 8);
  model.chain.add<Identity>("identity0");
  model.chain.add<ReLU>("relu1", ReLUOptions(true));
  model.chain.add<Linear>("linear1", 8, 16);
  model.chain.add<Half>("half0");
  model.chain.add<ReLU>("relu2", ReLUOptions(true));
  model.chain.add<Identity>("identity1");
  model.chain.add<Linear>("linear2", 8, 8);
  model.chain.add<Half>("half1");
  expect_transparent(model);
}

class Autocast {
 public:
  Autocast() {
    autocast::set_dtype(at::kCPU, at::kBFloat16);
    autocast::set_enabled(at::kCPU, true);
  }
  ~Autocast() {
    autocast::set_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

TEST(RematerializationTest, RunsAgainInTheTypesOfAutocast) {
  torch::manual_seed(1);
  const TestModel model = test::mlp();
  const Values in_float = trained(model, PipelineOptions(1));
  const Autocast autocast;
  const Values expected = trained(model, PipelineOptions(1));
  ASSERT_FALSE(test::same_bits(expected.at("loss 0"), in_float.at("loss 0")));
  for (const auto& rematerialization : grid({8, 8})) {
    SCOPED_TRACE(text_of(rematerialization));
    test::expect_same_values(trained(model, PipelineOptions(2).balance({8, 8}).rematerialization(rematerialization)),
                             expected);
  }
}

TEST(RematerializationTest, WorksInTheDropInModule) {
  torch::manual_seed(1);
  const TestModel model = test::cnn();
  const auto run = [&](PipelineOptions options) {
    Pipeline pipeline(model.chain, options.num_micro_batches(4));
    Values values;
    for (int step = 0; step < 2; ++step) {
      const at::Tensor input = model.input.clone().requires_grad_();
      const at::Tensor output = pipeline->forward(input);
      model.loss(output, model.target).loss.backward();
      values["output " + std::to_string(step)] = output.detach();
      values["gradient of the input " + std::to_string(step)] = input.grad();
    }
    pipeline->eval();
    values["output in evaluation"] = pipeline->forward(model.input).detach();
    add_state(*pipeline, values);
    return values;
  };
  const Values expected = run(PipelineOptions(1));
  for (const auto& rematerialization : grid({8, 10})) {
    SCOPED_TRACE(text_of(rematerialization));
    test::expect_same_values(run(PipelineOptions(2).balance({8, 10}).rematerialization(rematerialization)), expected);
  }
}

// Counts its forwards, and those that knew they were not the first of their micro-batch.
struct CountedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    ++num_forwards;
    if (is_recomputing()) ++num_again;
    return input * weight;
  }
  at::Tensor weight = register_parameter("weight", torch::ones({4}));
  int num_forwards = 0;
  int num_again = 0;
};
TORCH_MODULE(Counted);

TEST(RematerializationTest, RunsEachLayerAsOftenAsTheRunsAroundItSay) {
  torch::nn::Sequential model;
  std::vector<Counted> layers;
  for (int layer = 0; layer < 6; ++layer) {
    layers.emplace_back();
    model->push_back(layers.back());
  }
  const auto counts = [&](Recompute recompute) {
    Pipeline pipeline(model,
                      PipelineOptions(1).num_micro_batches(2).schedule("gpipe").recompute(recompute).rematerialization(
                          {parse_rematerialization("1-3{1-2},5-5")}));
    for (int step = 0; step < 2; ++step) {  // the first has a trial before it
      for (Counted& layer : layers) layer->num_forwards = layer->num_again = 0;
      pipeline->train_step(torch::randn({2, 4}), torch::randn({2, 4}), torch::nn::MSELoss());
    }
    std::vector<int> result;
    for (const Counted& layer : layers) {
      EXPECT_EQ(layer->num_again, layer->num_forwards - 2);
      result.push_back(layer->num_forwards);
    }
    return result;
  };
  EXPECT_THAT(counts(Recompute::kNever), ElementsAre(2, 6, 6, 4, 2, 4));
  EXPECT_THAT(counts(Recompute::kAlways), ElementsAre(4, 8, 8, 6, 4, 6));
}

// Two layers of which one has a bad second forward.
struct FailsAgainImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    if (is_recomputing() && fails) throw std::range_error("no second time");
    return linear(input);
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  bool fails = true;
};
TORCH_MODULE(FailsAgain);

TEST(RematerializationTest, ALayerThatFailsWhenItIsRunAgainIsNamed) {
  FailsAgain bad;
  torch::nn::Sequential model(Linear(4, 4), Linear(4, 4), bad, Linear(4, 4));
  Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(2).balance({1, 3}).rematerialization(
                               {{}, parse_rematerialization("0-2{0-1}")}));
  const at::Tensor input = torch::randn({4, 4});
  const at::Tensor target = torch::randn({4, 4});
  try {
    pipeline->train_step(input, target, torch::nn::MSELoss());
    FAIL() << "nothing was thrown";
  } catch (const ActionError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("backward of micro-batch 0 on stage 1, layer 2 (2) on Float [2, 4]"),
                                    HasSubstr("no second time")));
    EXPECT_THROW(std::rethrow_exception(error.cause()), std::range_error);
  }
  bad->fails = false;
  EXPECT_TRUE(pipeline->train_step(input, target, torch::nn::MSELoss()).loss.isfinite().item<bool>());
}

TEST(RematerializationTest, WhatDoesNotFitTheStagesIsRefused) {
  const TestModel model = test::mlp();
  const auto make = [&](PipelineOptions options) { Pipeline(model.chain, options); };
  const Rematerialization run = parse_rematerialization("1-8");
  EXPECT_THAT(
      [&] {
        make(PipelineOptions(2).balance({8, 8}).rematerialization({run}));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("rematerialization has 1 entries, but there are 2 stages")));
  EXPECT_THAT(
      [&] {
        make(PipelineOptions(2).rematerialization({run, {}}));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("give balance")));
  EXPECT_THAT(
      [&] {
        make(PipelineOptions(2).balance({8, 8}).rematerialization({{}, run}));
      },
      ThrowsMessage<InvalidArgument>(
          AllOf(HasSubstr("rematerialization of stage 1, which has 8 layers"), HasSubstr("[1, 9)"))));
  EXPECT_THAT([&] { make(PipelineOptions(1).recompute(Recompute::kAuto).rematerialization({run})); },
              ThrowsMessage<InvalidArgument>(HasSubstr("leave out balance, recompute_by_stage, rematerialization")));
}

// The plain run adds the two gradients before it adds them to what was there; two graphs cannot.
TEST(RematerializationTest, LayersThatShareAParameterAreRefused) {
  Linear shared(4, 4);
  torch::nn::Sequential model(shared, Linear(4, 4), shared);
  Pipeline pipeline(model, PipelineOptions(1).rematerialization({parse_rematerialization("1-1")}));
  EXPECT_THAT(
      [&] {
        pipeline->train_step(torch::randn({4, 4}), torch::randn({4, 4}), torch::nn::MSELoss());
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("share a parameter")));
}

// A wide layer on narrow ones: its activations are what there is to save.
struct WideImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return narrow(at::tanh(wide(at::tanh(input)))); }
  torch::nn::Linear wide = register_module("wide", torch::nn::Linear(16, 64));
  torch::nn::Linear narrow = register_module("narrow", torch::nn::Linear(64, 16));
};
TORCH_MODULE(Wide);

TEST(RematerializationTest, TakesTheBytesThatEvaluatePredicts) {
  LayerChain chain;
  for (int layer = 0; layer < 8; ++layer) chain.add<Wide>("wide" + std::to_string(layer));
  const at::Tensor input = torch::randn({1024, 16});
  const at::Tensor target = torch::randn({1024, 16});
  const std::vector<RematerializationCosts> costs = rematerialization_costs(profile(chain, input), 0, 8);
  const auto measured = [&](const Rematerialization& rematerialization) {
    Pipeline pipeline(
        chain, PipelineOptions(1).num_micro_batches(1).rematerialization({rematerialization}).measure_memory(true));
    pipeline->train_step(input, target, torch::nn::MSELoss());  // makes the gradients
    const StageMemory memory = pipeline->train_step(input, target, torch::nn::MSELoss()).memory.front();
    return memory.peak_bytes - memory.parameter_bytes - memory.gradient_bytes;
  };
  std::set<std::int64_t> different;
  for (const char* text :
       {"", "1-1", "0-3", "1-3,5-6", "0-6", "0-7", "0-6{0-3}", "0-7{0-6{0-5{0-4{0-3{0-2{0-1}}}}}}"}) {
    const Rematerialization runs = parse_rematerialization(text);
    const auto predicted = static_cast<double>(evaluate(costs, runs).peak_bytes);
    const auto got = static_cast<double>(measured(runs));
    EXPECT_TRUE(got / predicted > 0.9 && got / predicted < 1.001)
        << text << ": " << got << " measured, " << predicted << " predicted";
    different.insert(evaluate(costs, runs).peak_bytes);
  }
  EXPECT_GE(different.size(), 6u);
  EXPECT_GT(*different.rbegin(), 2 * *different.begin());
}

}  // namespace
}  // namespace gpipe
