// Kernels for the Meta device give the shapes, types and strides of the CPU's, forward and backward.
#include "gpipe/model/meta_kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/error.h"

namespace gpipe {
namespace {

namespace F = torch::nn::functional;
using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

std::string describe(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("{}[{}]({})", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","),
                     fmt::join(tensor.strides(), ","));
}

struct Case {
  std::string name;
  Tensors inputs;
  std::function<torch::Tensor(const Tensors& inputs)> run;
};

void PrintTo(const Case& test, std::ostream* stream) { *stream << test.name; }

// The output and the gradients of the inputs.
std::vector<std::string> describe_run(const Case& test, bool on_meta) {
  Tensors inputs;
  for (const torch::Tensor& input : test.inputs) {
    inputs.push_back((on_meta ? input.to(torch::kMeta) : input).detach());
    inputs.back().requires_grad_(input.is_floating_point());
  }
  const torch::Tensor output = test.run(inputs);
  EXPECT_EQ(output.is_meta(), on_meta);
  output.backward(torch::ones_like(output));
  std::vector<std::string> described = {describe(output)};
  for (const torch::Tensor& input : inputs) described.push_back(describe(input.grad()));
  return described;
}

torch::Tensor images() { return torch::randn({2, 6, 11, 13}); }

Case conv2d(const std::string& name, torch::Tensor input, torch::Tensor weight, F::Conv2dFuncOptions options = {}) {
  return {name, {input, weight, torch::randn({weight.size(0)}, weight.options())}, [options](const Tensors& inputs) {
            return F::conv2d(inputs[0], inputs[1], F::Conv2dFuncOptions(options).bias(inputs[2]));
          }};
}

std::vector<Case> cases() {
  const torch::Tensor indices = torch::randint(7, {3, 4}, torch::kLong);
  return {
      {"Relu", {images()}, [](const Tensors& inputs) { return inputs[0].relu(); }},
      {"ReluOfATransposed", {torch::randn({3, 4})}, [](const Tensors& inputs) { return inputs[0].t().relu(); }},
      {"ReluInPlace", {images()}, [](const Tensors& inputs) { return (inputs[0] * 2).relu_(); }},
      conv2d("Conv2d", images(), torch::randn({8, 6, 3, 5})),
      conv2d("Conv2dWithStridePaddingAndDilation", images(), torch::randn({8, 6, 3, 3}),
             F::Conv2dFuncOptions().stride({2, 3}).padding({1, 2}).dilation({2, 1})),
      conv2d("Conv2dInGroups", images(), torch::randn({9, 2, 3, 3}), F::Conv2dFuncOptions().groups(3)),
      conv2d("Conv2dOfDoubles", images().to(torch::kDouble), torch::randn({8, 6, 3, 3}, torch::kDouble)),
      conv2d("Conv2dOfChannelsLast", images().contiguous(at::MemoryFormat::ChannelsLast), torch::randn({8, 6, 3, 3})),
      {"Conv1d",
       {torch::randn({2, 6, 11}), torch::randn({8, 6, 3})},
       [](const Tensors& inputs) { return F::conv1d(inputs[0], inputs[1]); }},
      {"ConvTranspose2d",
       {images(), torch::randn({6, 4, 3, 3})},
       [](const Tensors& inputs) {
         return F::conv_transpose2d(inputs[0], inputs[1],
                                    F::ConvTranspose2dFuncOptions().stride(2).padding(1).output_padding(1));
       }},
      {"BatchNorm",
       {images(), torch::randn({6}), torch::randn({6})},
       [](const Tensors& inputs) {
         return torch::batch_norm(inputs[0], inputs[1], inputs[2], {}, {}, /*training=*/true, 0.1, 1e-5, false);
       }},
      {"InstanceNorm",
       {images(), torch::randn({6})},
       [](const Tensors& inputs) {
         return torch::instance_norm(inputs[0], inputs[1], {}, {}, {}, /*use_input_stats=*/true, 0.1, 1e-5, false);
       }},
      {"LayerNorm",
       {torch::randn({2, 3, 5, 7}), torch::randn({5, 7}), torch::randn({5, 7})},
       [](const Tensors& inputs) {
         return torch::layer_norm(inputs[0], {5, 7}, inputs[1], inputs[2]);
       }},
      {"LayerNormOfATransposed",
       {torch::randn({5, 3})},
       [](const Tensors& inputs) { return torch::layer_norm(inputs[0].t(), {5}); }},
      {"GroupNorm",
       {images(), torch::randn({6}), torch::randn({6})},
       [](const Tensors& inputs) { return torch::group_norm(inputs[0], 3, inputs[1], inputs[2]); }},
      {"IndexSelect",
       {torch::randn({7, 5}), torch::randint(5, {3}, torch::kLong)},
       [](const Tensors& inputs) { return inputs[0].index_select(-1, inputs[1]).mul(2); }},
      {"Embedding",
       {torch::randn({7, 5}), indices},
       [](const Tensors& inputs) { return torch::embedding(inputs[0], inputs[1]); }},
      {"AdaptiveAveragePooling",
       {images()},
       [](const Tensors& inputs) {
         return torch::adaptive_avg_pool2d(inputs[0], {3, 4});
       }},
      {"AdaptiveAveragePoolingToOne",
       {images()},
       [](const Tensors& inputs) {
         return torch::adaptive_avg_pool2d(inputs[0], {1, 1});
       }},
  };
}

class MetaKernels : public ::testing::TestWithParam<Case> {};

TEST_P(MetaKernels, GiveWhatTheCpuGives) {
  use_meta_kernels();
  EXPECT_EQ(describe_run(GetParam(), /*on_meta=*/true), describe_run(GetParam(), /*on_meta=*/false));
}

INSTANTIATE_TEST_SUITE_P(Operations, MetaKernels, ::testing::ValuesIn(cases()),
                         [](const auto& param_info) { return param_info.param.name; });

torch::Tensor meta(at::IntArrayRef sizes) { return torch::empty(sizes, torch::kMeta); }

TEST(MetaKernelsTest, SaveWhatTheCpuSaves) {
  use_meta_kernels();
  const auto describe_all = [](const std::tuple<at::Tensor, at::Tensor, at::Tensor>& results) {
    return describe(std::get<0>(results)) + describe(std::get<1>(results)) + describe(std::get<2>(results));
  };
  for (const bool training : {true, false}) {
    const auto batch_norm = [&](torch::Device device) {
      const torch::Tensor statistics = torch::ones({6}, device);
      return describe_all(
          torch::native_batch_norm(images().to(device), {}, {}, statistics, statistics, training, 0.1, 1));
    };
    EXPECT_EQ(batch_norm(torch::kMeta), batch_norm(torch::kCPU));
  }
  const auto layer_norm = [&](torch::Device device) {
    return describe_all(torch::native_layer_norm(images().to(device), {11, 13}, {}, {}, 1));
  };
  EXPECT_EQ(layer_norm(torch::kMeta), layer_norm(torch::kCPU));
}

TEST(MetaKernelsTest, RefuseShapesThatDoNotFit) {
  use_meta_kernels();
  const auto message = [](const auto& function) -> std::string {
    try {
      function();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message([] {
              F::conv2d(meta({2, 5, 9, 9}), meta({8, 3, 3, 3}), F::Conv2dFuncOptions().groups(2));
            }),
            "a convolution with weights [8, 3, 3, 3] in 2 groups takes 6 channels, got a tensor [2, 5, 9, 9]");
  EXPECT_THAT(message([] {
                torch::conv2d(meta({2, 6, 2, 9}), meta({8, 6, 3, 3}));
              }),
              HasSubstr("leaves nothing of a tensor [2, 6, 2, 9]"));
  EXPECT_EQ(message([] { torch::layer_norm(meta({2, 6}), {5}); }), "a layer norm over [5] got a tensor [2, 6]");
}

TEST(MetaKernelsTest, CanBeAskedForAgainAndByManyThreads) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) threads.emplace_back([] { use_meta_kernels(); });
  for (std::thread& thread : threads) thread.join();
  use_meta_kernels();
  EXPECT_EQ(meta({3, 4}).relu().sizes(), at::IntArrayRef({3, 4}));
}

}  // namespace
}  // namespace gpipe
