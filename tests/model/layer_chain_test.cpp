// Names of several parts: flat layers that keep the parameter names of a nested model.
#include "gpipe/model/layer_chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/error.h"
#include "gpipe/execute/pipeline.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

LayerChain two_blocks() {
  LayerChain chain;
  chain.add<torch::nn::Linear>("stem", 4, 4);
  chain.add<torch::nn::Linear>("layer1.0.conv1", 4, 4);
  chain.add<torch::nn::ReLU>("layer1.0.relu");
  chain.add<torch::nn::Linear>("layer1.1.conv1", torch::nn::LinearOptions(4, 4).bias(false));
  return chain;
}

std::vector<std::string> parameter_names(const Pipeline& pipeline) {
  std::vector<std::string> names;
  for (const auto& parameter : pipeline->named_parameters()) names.push_back(parameter.key());
  return names;
}

TEST(LayerChain, ANameOfSeveralPartsNamesTheParametersAsNestedModulesDo) {
  Pipeline pipeline(two_blocks(), PipelineOptions(2).balance({2, 2}));
  EXPECT_THAT(parameter_names(pipeline), ElementsAre("stem.weight", "stem.bias", "layer1.0.conv1.weight",
                                                     "layer1.0.conv1.bias", "layer1.1.conv1.weight"));
  pipeline->train_step(torch::ones({8, 4}), torch::ones({8, 4}), torch::nn::MSELoss());
  for (const at::Tensor& parameter : pipeline->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST(LayerChain, ATieFindsALayerWhoseNameHasSeveralParts) {
  Pipeline pipeline(two_blocks().tie("stem.weight", "layer1.1.conv1.weight"), PipelineOptions(2).balance({2, 2}));
  EXPECT_THAT(parameter_names(pipeline),
              ElementsAre("stem.weight", "stem.bias", "layer1.0.conv1.weight", "layer1.0.conv1.bias"));
  EXPECT_THAT([] { Pipeline(two_blocks().tie("stem.weight", "layer1.2.weight"), PipelineOptions(1)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no layer \"layer1.2\"")));
}

TEST(LayerChain, RefusesNamesThatCannotBeNested) {
  for (const char* name : {"", ".", "a.", ".a", "a..b"}) {
    EXPECT_THAT([&] { LayerChain().add<torch::nn::ReLU>(name); },
                ThrowsMessage<InvalidArgument>(HasSubstr("no part of it may be empty")));
  }
  EXPECT_THAT([] { two_blocks().add<torch::nn::ReLU>("layer1.0"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("\"layer1.0.conv1\" and \"layer1.0\" cannot both be layers")));
  EXPECT_THAT([] { two_blocks().add<torch::nn::ReLU>("stem.act"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("one would be inside the other")));
  EXPECT_THAT([] { two_blocks().add<torch::nn::ReLU>("stem"); }, ThrowsMessage<InvalidArgument>(HasSubstr("already")));
}

TEST(LayerChain, AModuleThatIsBuiltIsAddedUnderAName) {
  torch::nn::Linear linear(4, 4);
  const auto last = std::make_shared<torch::nn::LinearImpl>(4, 2);
  LayerChain chain;
  chain.add<torch::nn::Linear>("first", 4, 4);
  chain.add("relu", torch::nn::ReLU()).add("linear", linear).add("last", last);
  chain.add("block", torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::Tanh()));
  EXPECT_FALSE(chain.is_built(0));
  for (int layer = 1; layer < 5; ++layer) EXPECT_TRUE(chain.is_built(layer)) << layer;
  const at::Tensor weight = linear->weight.detach().clone();
  Pipeline pipeline(chain, PipelineOptions(2).num_micro_batches(2).balance({2, 3}).seed(77));
  EXPECT_THAT(parameter_names(pipeline), ElementsAre("first.weight", "first.bias", "linear.weight", "linear.bias",
                                                     "last.weight", "last.bias", "block.0.weight", "block.0.bias"));
  EXPECT_TRUE(test::same_bits(linear->weight, weight));  // whatever the seed is
  pipeline->train_step(torch::ones({8, 4}), torch::ones({8, 2}), torch::nn::MSELoss());
  EXPECT_TRUE(linear->weight.grad().defined());  // it is the caller's module
  EXPECT_TRUE(last->weight.grad().defined());
}

TEST(LayerChain, RefusesAModuleThatIsNotThereAndOneThatIsTwice) {
  EXPECT_THAT([] { LayerChain().add("a", torch::nn::Linear(nullptr)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("layer \"a\" is empty")));
  EXPECT_THAT([] { LayerChain().add("a", std::shared_ptr<torch::nn::LinearImpl>()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("layer \"a\" is empty")));
  const torch::nn::Linear twice(4, 4);
  EXPECT_THAT(
      [&] {
        Pipeline(LayerChain().add("a", twice).add("b", twice), PipelineOptions(2).balance({1, 1}));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("are the same tensor")));
}

}  // namespace
}  // namespace gpipe
