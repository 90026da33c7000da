// A pipeline where libtorch's own modules stand: called, inside other modules, printed, cloned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "gpipe/execute/pipeline.h"
#include "tests/execute/plain_chain.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::nn::Tanh;

Sequential make_model() {
  torch::manual_seed(11);
  return Sequential(Linear(4, 6), Tanh(), Linear(6, 3));
}

// One micro-batch, so that the bits are those of the plain model.
Pipeline make_pipeline() { return Pipeline(make_model(), PipelineOptions(2).num_micro_batches(1).balance({1, 2})); }

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) names.push_back(parameter.key());
  return names;
}

// Five steps of SGD, by autograd.
void train(torch::nn::Module& module, const std::function<at::Tensor(const at::Tensor&)>& forward) {
  torch::manual_seed(12);
  torch::optim::SGD optimizer(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(forward(torch::randn({8, 4})), torch::randn({8, 3})).backward();
    optimizer.step();
  }
}

void expect_same_parameters(const torch::nn::Module& got, const torch::nn::Module& expected) {
  ASSERT_EQ(got.parameters().size(), expected.parameters().size());
  for (std::size_t index = 0; index < expected.parameters().size(); ++index) {
    EXPECT_TRUE(test::same_bits(got.parameters()[index], expected.parameters()[index])) << index;
  }
}

class DropInTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_F(DropInTest, AHolderIsCalledAsOneOfLibtorchsIs) {
  Sequential model = make_model();
  train(*model, [&](const at::Tensor& input) { return model->forward(input); });
  Pipeline pipeline = make_pipeline();
  train(*pipeline, [&](const at::Tensor& input) { return pipeline(input); });
  expect_same_parameters(*pipeline, *model);
}

TEST_F(DropInTest, ASequentialMayHoldAPipelineAndTrainsTheSameBits) {
  torch::manual_seed(13);
  Sequential plain{Linear(4, 4)};
  const Sequential rest = make_model();
  for (auto layer = rest->begin(); layer != rest->end(); ++layer) plain->push_back(*layer);
  torch::manual_seed(13);
  const Linear first(4, 4);
  Sequential model(first, make_pipeline());
  EXPECT_THAT(parameter_names(*model),
              ElementsAre("0.weight", "0.bias", "1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias"));
  train(*plain, [&](const at::Tensor& input) { return plain->forward(input); });
  train(*model, [&](const at::Tensor& input) { return model->forward(input); });
  expect_same_parameters(*model, *plain);
}

TEST_F(DropInTest, AnAnyModuleMayHoldAPipeline) {
  const at::Tensor input = torch::randn({8, 4});
  torch::nn::AnyModule any(make_pipeline());
  EXPECT_TRUE(test::same_bits(any.forward(input), make_model()->forward(input)));
}

struct OuterImpl : torch::nn::Module {
  OuterImpl() : first(register_module("first", Linear(4, 4))), rest(register_module("rest", make_pipeline())) {}
  at::Tensor forward(const at::Tensor& input) { return rest(first(input)); }
  Linear first;
  Pipeline rest;
};
TORCH_MODULE(Outer);

TEST_F(DropInTest, APipelineMayBeASubmodule) {
  Outer outer;
  EXPECT_THAT(parameter_names(*outer), ElementsAre("first.weight", "first.bias", "rest.0.weight", "rest.0.bias",
                                                   "rest.2.weight", "rest.2.bias"));
  train(*outer, [&](const at::Tensor& input) { return outer(input); });
  for (const at::Tensor& parameter : outer->parameters()) EXPECT_TRUE(parameter.grad().defined());
  outer->eval();
  EXPECT_FALSE(outer->rest->is_training());
}

TEST_F(DropInTest, PrintsWhatItIsAndItsLayers) {
  std::ostringstream text;
  text << Sequential(Linear(4, 4), make_pipeline());
  EXPECT_THAT(text.str(), AllOf(HasSubstr("gpipe::Pipeline(num_stages=2, num_micro_batches=1, schedule=1f1b)"),
                                HasSubstr("torch::nn::Linear(in_features=6, out_features=3")));
}

TEST_F(DropInTest, ACloneIsRefusedWithARemedy) {
  EXPECT_THAT([] { make_pipeline()->clone(); }, ThrowsMessage<InvalidArgument>(HasSubstr("make a second pipeline")));
  EXPECT_THAT([] { Sequential(Linear(4, 4), make_pipeline())->clone(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("cannot be cloned")));
}

}  // namespace
}  // namespace gpipe
