#include "gpipe/model/tie.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/execute/pipeline.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

LayerChain language_model() {
  LayerChain chain;
  chain.add<torch::nn::Embedding>("embedding", 9, 4);
  chain.add<torch::nn::Linear>("middle", 4, 4);
  chain.add<torch::nn::Linear>("head", 4, 9);
  return chain;
}

at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

class TieTest : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(3); }
  const at::Tensor tokens_ = torch::randint(9, {8}, torch::kLong);
  const at::Tensor next_ = torch::randint(9, {8}, torch::kLong);
};

TEST_F(TieTest, AnOptimizerSeesOneWeightAndBothLayersUseIt) {
  Pipeline pipeline(language_model().tie("embedding.weight", "head.weight"),
                    PipelineOptions(3).num_micro_batches(2).balance({1, 1, 1}));
  std::vector<std::string> names;
  for (const auto& item : pipeline->named_parameters()) names.push_back(item.key());
  EXPECT_THAT(names, ::testing::ElementsAre("embedding.weight", "middle.weight", "middle.bias", "head.bias"));

  torch::optim::SGD optimizer(pipeline->parameters(), 0.5);
  const at::Tensor before = pipeline->forward(tokens_).detach();
  pipeline->train_step(tokens_, next_, loss);
  optimizer.step();
  const at::Tensor weight = pipeline->named_parameters()["embedding.weight"].detach();
  const auto middle = pipeline->named_parameters();
  const at::Tensor expected = at::linear(
      at::linear(weight.index_select(0, tokens_), middle["middle.weight"].detach(), middle["middle.bias"].detach()),
      weight, middle["head.bias"].detach());
  EXPECT_FALSE(test::same_bits(pipeline->forward(tokens_), before));
  EXPECT_TRUE(torch::allclose(pipeline->forward(tokens_), expected));
}

TEST_F(TieTest, TheGradientIsThatOfAPlainModelThatSharesTheWeight) {
  for (const std::vector<int>& balance : {std::vector<int>{3}, {1, 2}, {2, 1}, {1, 1, 1}}) {
    Pipeline pipeline(language_model().tie("embedding.weight", "head.weight"),
                      PipelineOptions(static_cast<int>(balance.size())).num_micro_batches(2).balance(balance));
    const auto parameters = pipeline->named_parameters();
    const at::Tensor weight = parameters["embedding.weight"].detach().clone().requires_grad_(true);
    const at::Tensor output =
        at::linear(at::linear(at::embedding(weight, tokens_), parameters["middle.weight"].detach(),
                              parameters["middle.bias"].detach()),
                   weight, parameters["head.bias"].detach());
    loss(output, next_).backward();
    for (int step = 1; step <= 2; ++step) {  // gradients add up over steps
      pipeline->train_step(tokens_, next_, loss);
      EXPECT_TRUE(torch::allclose(parameters["embedding.weight"].grad(), weight.grad() * step, 1e-5, 1e-6));
    }
  }
}

TEST_F(TieTest, TheDropInBackwardAddsTheGradientsUp) {
  Pipeline pipeline(language_model().tie("embedding.weight", "head.weight"),
                    PipelineOptions(2).num_micro_batches(2).balance({1, 2}));
  pipeline->train_step(tokens_, next_, loss);
  const at::Tensor expected = pipeline->named_parameters()["embedding.weight"].grad().clone();
  pipeline->zero_grad();
  loss(pipeline->forward(tokens_), next_).backward();
  EXPECT_TRUE(torch::allclose(pipeline->named_parameters()["embedding.weight"].grad(), expected));
}

TEST_F(TieTest, ACastOfTheModelKeepsTheTie) {
  Pipeline pipeline(language_model().tie("embedding.weight", "head.weight"),
                    PipelineOptions(2).num_micro_batches(2).balance({1, 2}));
  pipeline->to(torch::kFloat64);
  pipeline->train_step(tokens_, next_, loss);
  const at::Tensor weight = pipeline->named_parameters()["embedding.weight"];
  EXPECT_EQ(weight.grad().dtype(), torch::kFloat64);
  const at::Tensor before = pipeline->forward(tokens_).detach();
  {
    const at::NoGradGuard no_grad;
    weight.zero_();
  }
  EXPECT_FALSE(test::same_bits(pipeline->forward(tokens_), before));
}

TEST_F(TieTest, AFailedStepLeavesNoGradientBehind) {
  Pipeline pipeline(language_model().tie("embedding.weight", "head.weight"),
                    PipelineOptions(2).num_micro_batches(4).balance({1, 2}));
  pipeline->train_step(tokens_, next_, loss);
  const at::Tensor expected = pipeline->named_parameters()["embedding.weight"].grad().clone();
  int calls = 0;
  const auto failing = [&](const at::Tensor& output, const at::Tensor& target) {
    if (++calls == 3) throw std::runtime_error("on purpose");
    return loss(output, target);
  };
  EXPECT_THROW(pipeline->train_step(tokens_, next_, failing), ActionError);
  pipeline->zero_grad();
  pipeline->train_step(tokens_, next_, loss);
  EXPECT_TRUE(test::same_bits(pipeline->named_parameters()["embedding.weight"].grad(), expected));
}

TEST_F(TieTest, WrongTiesAreRefusedByName) {
  const auto make = [](const LayerChain& chain) { Pipeline(chain, PipelineOptions(2).balance({1, 2})); };
  EXPECT_THAT([&] { make(language_model().tie("embedding.weight", "tail.weight")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no layer \"tail\"")));
  EXPECT_THAT([&] { make(language_model().tie("embedding.weight", "head.scale")); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("head.scale"), HasSubstr("head.weight, head.bias"))));
  EXPECT_THAT([&] { make(language_model().tie("embedding.weight", "middle.weight")); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("[4, 4]"), HasSubstr("[9, 4]"))));
  EXPECT_THAT([&] { make(language_model().tie("head.weight", "head.weight")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("itself")));
  EXPECT_THAT(
      [&] { make(language_model().tie("embedding.weight", "head.weight").tie("embedding.weight", "head.weight")); },
      ThrowsMessage<InvalidArgument>(HasSubstr("twice")));
}

TEST_F(TieTest, AParameterSharedByLayersIsRefusedWithTheRemedy) {
  torch::nn::Linear linear(3, 3);
  torch::nn::Sequential model(linear, torch::nn::ReLU(), linear);
  EXPECT_THAT(
      [&] {
        Pipeline(model, PipelineOptions(2).balance({1, 2}));
      },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("0.weight"), HasSubstr("2.weight"), HasSubstr("tie"))));
}

}  // namespace
}  // namespace gpipe
