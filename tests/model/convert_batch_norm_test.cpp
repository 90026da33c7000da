// The converter of whole models to deferred batch norm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "gpipe/error.h"
#include "gpipe/model/deferred_batch_norm.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    body = register_module("body", torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4)));
  }
  torch::Tensor forward(const torch::Tensor& input) { return input + body->forward(input); }
  torch::nn::Sequential body{nullptr};
};
TORCH_MODULE(Block);

struct TypedBlockImpl : torch::nn::Module {
  TypedBlockImpl() {
    norm1 = register_module("norm1", torch::nn::BatchNorm1d(4));
    norm2 = register_module("norm2", torch::nn::BatchNorm1d(4));
  }
  torch::Tensor forward(const torch::Tensor& input) { return norm2->forward(norm1->forward(input)); }
  torch::nn::BatchNorm1d norm1{nullptr};
  torch::nn::BatchNorm1d norm2{nullptr};
};
TORCH_MODULE(TypedBlock);

// Same names, same tensors: not copies.
void expect_same_state(const torch::nn::Module& module,
                       const torch::OrderedDict<std::string, torch::Tensor>& parameters,
                       const torch::OrderedDict<std::string, torch::Tensor>& buffers) {
  EXPECT_EQ(module.named_parameters().keys(), parameters.keys());
  EXPECT_EQ(module.named_buffers().keys(), buffers.keys());
  for (const auto& item : module.named_parameters()) EXPECT_TRUE(item.value().is_same(parameters[item.key()]));
  for (const auto& item : module.named_buffers()) EXPECT_TRUE(item.value().is_same(buffers[item.key()]));
}

TEST(ConvertBatchNormTest, KeepsNamesAndSharesEveryTensor) {
  torch::nn::Sequential model({{"conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3))},
                               {"norm", torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(4).momentum(0.3).eps(1e-3))},
                               {"flat", torch::nn::Flatten()},
                               {"tail", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(36).affine(false))}});
  model->ptr(1)->as<torch::nn::BatchNorm2dImpl>()->weight.set_requires_grad(false);
  model->ptr(1)->as<torch::nn::BatchNorm2dImpl>()->eval();
  const auto parameters = model->named_parameters();
  const auto buffers = model->named_buffers();
  torch::nn::Sequential converted = nn::convert_batch_norm(model);
  expect_same_state(*converted, parameters, buffers);
  expect_same_state(*model, parameters, buffers);
  const auto* norm = converted->ptr(1)->as<nn::DeferredBatchNorm2dImpl>();
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->options.momentum().value(), 0.3);
  EXPECT_FALSE(norm->weight.requires_grad());
  EXPECT_FALSE(norm->is_training());
  EXPECT_TRUE(converted->ptr(3)->is_training());
  EXPECT_NE(converted->ptr(3)->as<nn::DeferredBatchNorm1dImpl>(), nullptr);
  const torch::Tensor input = torch::randn({5, 3, 5, 5});
  EXPECT_TRUE(test::same_bits(converted->forward(input), model->forward(input)));
}

TEST(ConvertBatchNormTest, ReplacesInsideTheSequentialOfALayer) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), Block());
  const auto parameters = model->named_parameters();
  const auto buffers = model->named_buffers();
  torch::nn::Sequential converted = nn::convert_batch_norm(model);
  expect_same_state(*converted, parameters, buffers);
  auto& body = *converted->at<BlockImpl>(1).body;
  EXPECT_NE(body.ptr(1)->as<nn::DeferredBatchNorm1dImpl>(), nullptr);
  EXPECT_EQ(body.named_children()["1"], body.ptr(1));
  EXPECT_EQ(converted->forward(torch::randn({3, 4})).size(0), 3);
}

TEST(ConvertBatchNormTest, NamesEveryBatchNormItCannotReachAndChangesNothing) {
  torch::nn::Sequential model{Block(), TypedBlock()};
  try {
    nn::convert_batch_norm(model);
    FAIL() << "it was converted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("1.norm1"), HasSubstr("1.norm2")));
  }
  EXPECT_NE(model->at<BlockImpl>(0).body->ptr(1)->as<torch::nn::BatchNorm1dImpl>(), nullptr);
}

TEST(ConvertBatchNormTest, ReplacesAModuleThatOccursTwiceByOne) {
  torch::nn::BatchNorm1d norm(4);
  torch::nn::Sequential model(norm, torch::nn::Linear(4, 4), norm);
  torch::nn::Sequential converted = nn::convert_batch_norm(model);
  EXPECT_EQ(converted->ptr(0), converted->ptr(2));
  EXPECT_EQ(nn::convert_batch_norm(converted)->ptr(0), converted->ptr(0));  // deferred already
}

}  // namespace
}  // namespace gpipe
