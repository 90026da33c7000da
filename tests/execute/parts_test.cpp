// Layers that are parts of one module: the pipeline has that module's names, and trains as any other chain.
#include "tests/model/parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/error.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/stage_optimizers.h"
#include "gpipe/model/num_parameters.h"
#include "gpipe/model/profiler.h"
#include "tests/execute/plain_chain.h"
#include "tests/execute/training.h"
#include "tests/model/same_bits.h"

namespace gpipe::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

PipelineOptions options_for(const std::vector<int>& balance) {
  return PipelineOptions(static_cast<int>(balance.size())).num_micro_batches(4).balance(balance).seed(kSeed);
}

TestModel model_of(LayerChain chain) {
  torch::manual_seed(2);
  return {"parts", std::move(chain), torch::randn({16, 5}), torch::randn({16, 5}),
          [](const at::Tensor& output, const at::Tensor& target) { return LossValue(at::mse_loss(output, target)); }};
}

// "layer 4.head.bias" is "head.bias".
std::map<std::string, at::Tensor> without_layer_names(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, tensor] : tensors) {
    const bool is_loss = name.rfind("loss", 0) == 0;
    result[is_loss ? name : name.substr(name.find('.') + 1)] = tensor;
  }
  return result;
}

TEST(Parts, APipelineHasTheNamesAndTheOrderOfTheWholeModule) {
  for (const std::vector<int>& balance : {std::vector<int>{5}, {2, 3}, {1, 1, 1, 1, 1}}) {
    Pipeline pipeline(chain_of_parts(), options_for(balance));
    EXPECT_THAT(pipeline->named_parameters().keys(), ElementsAreArray(kWholeParameters));
    EXPECT_THAT(pipeline->named_buffers().keys(), ElementsAreArray(kWholeBuffers));
  }
}

TEST(Parts, TheTensorsAndModulesOfThePipelineAreThoseOfTheLayers) {
  LayerChain chain;
  const auto slices = make_slices();
  for (const auto& [name, slice] : slices) chain.add_part(name, slice);
  chain.tie({"embed", "embed.weight"}, {"head", "embed.weight"});
  {
    Pipeline pipeline(chain, options_for({2, 3}));
    const auto parameters = pipeline->named_parameters();
    for (const auto& [name, slice] : slices) {
      for (const auto& item : slice->named_parameters()) {
        EXPECT_TRUE(parameters[item.key()].is_same(item.value())) << item.key();
      }
    }
    // It is in one part, and so is this very module.
    EXPECT_EQ(pipeline->named_modules()["encoder.0.norm"], slices[3].second->named_modules()["encoder.0.norm"]);
    EXPECT_FALSE(slices[4].second->named_parameters().contains("embed.weight"));
  }
  EXPECT_TRUE(slices[4].second->named_parameters().contains("embed.weight"));  // no longer tied
}

TEST(Parts, TrainAsAPlainChainDoesInEveryScheduleAndMode) {
  Problem problem;
  problem.make = chain_of_parts;
  const TestModel model = model_of({});
  problem.inputs = {model.input};
  problem.targets = {model.target};
  problem.loss = loss_of(model);
  expect_transparent(problem);
}

TEST(Parts, TrainAsTheSameLayersAddedWithTheirOwnNames) {
  at::set_num_threads(1);
  const Trained plain = train_plainly(model_of(chain_of_plain_layers()), 13);
  for (const std::vector<int>& balance : {std::vector<int>{5}, {2, 3}, {1, 3, 1}, {1, 1, 1, 1, 1}}) {
    const Trained parts = train_pipelined(model_of(chain_of_parts()), 13, options_for(balance));
    expect_same_values(parts.tensors, without_layer_names(plain.tensors));
  }
}

TEST(Parts, GradientsAreClippedInTheOrderOfTheWholeModule) {
  at::set_num_threads(1);
  const TestModel model = model_of(chain_of_parts());
  for (const std::vector<int>& balance : {std::vector<int>{5}, {2, 3}, {1, 3, 1}}) {
    Pipeline pipeline(chain_of_parts(), options_for(balance));
    pipeline->train_step(model.input, model.target, model.loss);
    std::vector<at::Tensor> copies;
    for (const char* name : kWholeParameters) {
      const at::Tensor parameter = pipeline->named_parameters()[name];
      copies.push_back(parameter.detach().clone());
      copies.back().mutable_grad() = parameter.grad().clone();
    }
    EXPECT_EQ(clip_grad_norm_(pipeline, 0.01), torch::nn::utils::clip_grad_norm_(copies, 0.01));
    const auto parameters = pipeline->parameters();
    for (std::size_t index = 0; index < copies.size(); ++index) {
      EXPECT_TRUE(same_bits(parameters[index].grad(), copies[index].grad())) << kWholeParameters[index];
    }
  }
}

TEST(Parts, TrainAndEvalReachTheModulesOfEveryPart) {
  at::set_num_threads(1);
  Pipeline pipeline(chain_of_parts(), options_for({2, 3}).num_micro_batches(1));
  const TestModel model = model_of({});
  const auto output = [&](bool root, bool drop, bool norm) {
    at::Tensor value = model.input;
    for (const auto& [name, slice] : make_slices()) {
      slice->train(root);
      if (slice->named_modules().contains("encoder.0.drop")) slice->named_modules()["encoder.0.drop"]->train(drop);
      if (slice->named_modules().contains("encoder.0.norm")) slice->named_modules()["encoder.0.norm"]->train(norm);
      value = slice->forward(value);
    }
    return value;
  };
  const at::NoGradGuard no_grad;
  pipeline->eval();
  EXPECT_TRUE(same_bits(pipeline->forward(model.input), output(false, false, false)));
  const auto modules = pipeline->named_modules();
  for (const auto& item : modules) EXPECT_FALSE(item.value()->is_training()) << item.key();
  pipeline->train();
  for (const auto& item : modules) EXPECT_TRUE(item.value()->is_training()) << item.key();
  modules["encoder.0"]->eval();  // several parts have it
  const at::Tensor mean = pipeline->named_buffers()["encoder.0.norm.running_mean"].clone();
  EXPECT_TRUE(same_bits(pipeline->forward(model.input), output(true, false, false)));
  EXPECT_TRUE(same_bits(pipeline->named_buffers()["encoder.0.norm.running_mean"], mean));
  modules["encoder.0.norm"]->train();  // one part has it
  pipeline->forward(model.input);
  EXPECT_FALSE(same_bits(pipeline->named_buffers()["encoder.0.norm.running_mean"], mean));
}

TEST(Parts, ACastReachesEveryPart) {
  const TestModel model = model_of({});
  Pipeline pipeline(chain_of_parts(), options_for({2, 3}));
  pipeline->to(torch::kFloat64);
  const StepResult result = pipeline->train_step(model.input.to(at::kDouble), model.target.to(at::kDouble), model.loss);
  EXPECT_EQ(result.loss.scalar_type(), at::kDouble);
  for (const auto& item : pipeline->named_parameters()) {
    EXPECT_EQ(item.value().grad().scalar_type(), at::kDouble) << item.key();
  }
  pipeline->zero_grad();
  for (const at::Tensor& parameter : pipeline->parameters()) {
    EXPECT_TRUE(!parameter.grad().defined() || parameter.grad().count_nonzero().item<std::int64_t>() == 0);
  }
}

TEST(Parts, StandBesideLayersWhoseParametersHaveTheirNames) {
  const auto add_bias = [] {
    auto part = std::make_shared<SliceImpl>(
        [](const SliceImpl& own, const at::Tensor& input) { return input + own["block.shift"]; });
    part->with_parameter("block.shift", torch::zeros({4}));
    return part;
  };
  LayerChain chain;
  chain.add<torch::nn::Linear>("block.first", 4, 4).add_part("shift", add_bias()).add<torch::nn::Linear>("last", 4, 2);
  Pipeline pipeline(chain, options_for({1, 2}));
  EXPECT_THAT(pipeline->named_parameters().keys(),
              ElementsAreArray({"block.shift", "block.first.weight", "block.first.bias", "last.weight", "last.bias"}));
  pipeline->named_modules()["block"]->eval();
  EXPECT_FALSE(pipeline->named_modules()["block.first"]->is_training());
  EXPECT_THAT(
      [&] {
        Pipeline(LayerChain(chain).add<torch::nn::ReLU>("block.shift"), options_for({1, 3}));
      },
      ThrowsMessage<InvalidArgument>(
          AllOf(HasSubstr("\"block.shift\" of the part \"shift\""), HasSubstr("inside the layer \"block.shift\""))));
}

TEST(Parts, ANameOfTwoPartsIsRefusedWithTheRemedyUnlessTheyAreTied) {
  LayerChain chain;
  for (const auto& [name, slice] : make_slices()) chain.add_part(name, slice);
  for (const std::vector<int>& balance : {std::vector<int>{5}, {2, 3}}) {
    EXPECT_THAT([&] { Pipeline(chain, options_for(balance)); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("the parts \"embed\" and \"head\" both have \"embed.weight\""),
                          HasSubstr("tie({\"embed\", \"embed.weight\"}, {\"head\", \"embed.weight\"})"))));
  }
  const auto tied = [&](const TiedWeight& owner, const TiedWeight& user) {
    Pipeline(LayerChain(chain).tie({"embed", "embed.weight"}, {"head", "embed.weight"}).tie(owner, user),
             options_for({2, 3}));
  };
  EXPECT_THAT(
      [&] {
        tied("shift", {"nowhere", "head.bias"});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("of the layer \"nowhere\" is tied, but there is no such layer")));
  EXPECT_THAT(
      [&] {
        tied("shift", {"embed", "head.bias"});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("layer \"embed\" has no such parameter; it has shift, embed.weight")));
  EXPECT_THAT(
      [&] { tied("embed.weight", "shift"); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("2 parts have it"), HasSubstr("{\"embed\", \"embed.weight\"}"))));
  EXPECT_THAT(
      [&] {
        tied({"embed", "embed.weight"}, {"embed", "embed.weight"});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("is tied")));
}

TEST(Parts, ATieIsFoundByTheNameAloneWhereOnePartHasIt) {
  Pipeline pipeline(chain_of_parts().tie("encoder.0.norm.bias", "shift"), options_for({2, 3}));
  EXPECT_FALSE(pipeline->named_parameters().contains("shift"));
  EXPECT_TRUE(pipeline->named_parameters().contains("encoder.0.norm.bias"));
}

TEST(Parts, AreBuiltWhereTheyAreNeededIfTheirNamesAreTold) {
  const auto chain_with = [](std::vector<std::string> names) {
    LayerChain chain;
    chain.add_part("scale", std::move(names), [] {
      auto slice = std::make_shared<SliceImpl>(
          [](const SliceImpl& own, const at::Tensor& input) { return input * own["a.scale"]; });
      slice->with_parameter("a.scale", torch::ones({5}));
      return make_layer(slice);
    });
    chain.add<torch::nn::Linear>("last", 5, 5);
    return chain;
  };
  EXPECT_FALSE(chain_with({"a.scale"}).is_built(0));
  Pipeline pipeline(chain_with({"a.scale"}), options_for({1, 1}));
  EXPECT_TRUE(pipeline->named_parameters().contains("a.scale"));
  EXPECT_THAT(
      [&] {
        Pipeline(chain_with({"b.scale"}), options_for({1, 1}));
      },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("[b.scale]"), HasSubstr("[a.scale]"))));
  EXPECT_THAT([] { LayerChain().add_part("empty", std::shared_ptr<SliceImpl>()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the module for the part \"empty\" is empty")));
  EXPECT_THAT([] { chain_of_parts().add_part("head", make_slices()[0].second); },
              ThrowsMessage<InvalidArgument>(HasSubstr("there is a layer named \"head\" already")));
}

TEST(Parts, AreCountedAndProfiledAsLayersAre) {
  std::int64_t expected = 0;
  Pipeline pipeline(chain_of_parts(), options_for({5}));
  for (const at::Tensor& parameter : pipeline->parameters()) expected += parameter.numel();
  EXPECT_EQ(num_parameters(chain_of_parts()), expected);
  const Profile measured = profile(chain_of_parts(), torch::randn({4, 5}));
  ASSERT_EQ(measured.layers.size(), 5U);
  EXPECT_EQ(measured.layers[2].name, "encoder.0");
  EXPECT_EQ(measured.layers[3].parameter_bytes, (36 + 6 + 6) * 4);
}

}  // namespace
}  // namespace gpipe::test
