// The ResNets: names of the public weights, and a second implementation of their forwards.
#include "models/resnet.h"

#include <gtest/gtest.h>

#include <set>

#include "models/resnet_cifar.h"
#include "tests/models/state.h"

namespace gpipe::test {
namespace {

using models::ResNetCifarOptions;
using models::ResNetOptions;

at::Tensor conv_norm(const State& state, const at::Tensor& x, const std::string& block, int number, int stride,
                     int padding) {
  const at::Tensor y = state.conv(x, block + "conv" + std::to_string(number), {stride, stride}, {padding, padding});
  return state.batch_norm(y, block + "bn" + std::to_string(number));
}

at::Tensor cifar_forward(const State& state, int blocks, const at::Tensor& image) {
  at::Tensor x = at::relu(conv_norm(state, image, "", 1, 1, 1));
  for (int group = 1; group <= 3; ++group) {
    for (int block = 0; block < blocks; ++block) {
      const std::string name = "layer" + std::to_string(group) + "." + std::to_string(block) + ".";
      const bool halves = group > 1 && block == 0;
      const at::Tensor y = at::relu(conv_norm(state, x, name, 1, halves ? 2 : 1, 1));
      at::Tensor identity = x;
      if (halves) {
        // Channel c of the input becomes channel c + C/2 of 2 C; pixel (2 i, 2 j) becomes (i, j).
        identity = at::zeros_like(y);
        const auto channels = x.size(1);
        identity.narrow(1, channels / 2, channels).copy_(at::max_pool2d(x, 1, 2));
      }
      x = at::relu(conv_norm(state, y, name, 2, 1, 1) + identity);
    }
  }
  return state.linear(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1), "linear");
}

at::Tensor imagenet_forward(const State& state, std::vector<int> blocks, bool bottleneck, const at::Tensor& image) {
  at::Tensor x = at::max_pool2d(at::relu(conv_norm(state, image, "", 1, 2, 3)), 3, 2, 1);
  for (int group = 1; group <= 4; ++group) {
    for (int block = 0; block < blocks[group - 1]; ++block) {
      const std::string name = "layer" + std::to_string(group) + "." + std::to_string(block) + ".";
      const int stride = group > 1 && block == 0 ? 2 : 1;
      at::Tensor y = at::relu(conv_norm(state, x, name, 1, bottleneck ? 1 : stride, bottleneck ? 0 : 1));
      y = conv_norm(state, y, name, 2, bottleneck ? stride : 1, 1);
      if (bottleneck) y = conv_norm(state, at::relu(y), name, 3, 1, 0);
      if (state.has(name + "downsample.0.weight")) {
        x = state.batch_norm(state.conv(x, name + "downsample.0", {stride, stride}, {0, 0}), name + "downsample.1");
      }
      x = at::relu(x + y);
    }
  }
  return state.linear(x.mean({2, 3}), "fc");
}

TEST(ResNetCifar, IsWhatItsFormulasSay) {
  torch::manual_seed(1);
  const at::NoGradGuard no_grad;
  const at::Tensor image = torch::randn({4, 3, 32, 32});
  Pipeline pipeline = evaluating(models::resnet_cifar(20));
  expect_close(pipeline->forward(image), cifar_forward(State(*pipeline), 3, image));
}

TEST(ResNetCifar, HasTheStateNamesOfThePublicWeights) {
  std::set<std::string> expected;
  const auto add_norm = [&](const std::string& name) {
    for (const char* key : {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}) {
      expected.insert(name + "." + key);
    }
  };
  expected.insert({"conv1.weight", "linear.weight", "linear.bias"});
  add_norm("bn1");
  for (const std::string group : {"layer1", "layer2", "layer3"}) {
    for (const std::string block : {"0", "1", "2"}) {
      for (const std::string number : {"1", "2"}) {
        expected.insert(group + "." + block + ".conv" + number + ".weight");
        add_norm(group + "." + block + ".bn" + number);
      }
    }
  }
  for (const bool deferred : {true, false}) {
    Pipeline pipeline(models::resnet_cifar(ResNetCifarOptions(20).deferred_batch_norm(deferred)), PipelineOptions(1));
    std::set<std::string> names;
    const State state(*pipeline);
    for (const auto& [name, tensor] : state.tensors()) names.insert(name);
    EXPECT_EQ(names, expected);
    EXPECT_EQ(names.size(), 116);
    EXPECT_EQ(pipeline->named_parameters()["layer2.0.conv1.weight"].sizes(), at::IntArrayRef({32, 16, 3, 3}));
    EXPECT_EQ(pipeline->named_parameters()["linear.weight"].sizes(), at::IntArrayRef({10, 64}));
  }
}

TEST(ResNetCifar, ItsShortcutSubsamplesAndPadsWithZerosOnBothSides) {
  Pipeline pipeline(models::resnet_cifar(8), PipelineOptions(1).num_micro_batches(1));
  pipeline->eval();
  const at::NoGradGuard no_grad;
  // Nothing but the shortcut is left of the blocks, and conv1 puts its image into each of its 16 channels.
  for (auto& item : pipeline->named_parameters()) {
    const bool in_block = item.key().rfind("layer", 0) == 0;
    if (in_block && item.key().find("conv") != std::string::npos) item.value().zero_();
    if (item.key() == "conv1.weight") {
      item.value().zero_();
      item.value().select(2, 1).select(2, 1).fill_(1);
    }
    if (item.key() == "linear.bias") item.value().zero_();
  }
  const at::Tensor image = at::zeros({1, 3, 8, 8});
  image[0][0][4][4] = 1;  // at a position that both subsamplings keep
  image[0][0][5][4] = 9;  // at one that they drop
  const at::Tensor logits = pipeline->forward(image);
  // 16 channels in the middle of 32, and those in the middle of 64, hold one pixel of 1 among 2 x 2.
  const at::Tensor weight = pipeline->named_parameters()["linear.weight"];
  expect_close(logits, weight.narrow(1, 24, 16).sum(1).unsqueeze(0) / 4);
}

TEST(ResNetCifar, ItsFirstWeightsAreKaimingNormalByFanIn) {
  const State state(*Pipeline(models::resnet_cifar(56), PipelineOptions(1)));
  EXPECT_NEAR(state["layer3.5.conv2.weight"].std().item<double>(), std::sqrt(2.0 / (64 * 9)), 1e-3);
  EXPECT_NEAR(state["layer2.0.conv1.weight"].std().item<double>(), std::sqrt(2.0 / (16 * 9)), 4e-3);
}

TEST(ResNetCifar, RefusesADepthThatIsNone) {
  EXPECT_THROW(models::resnet_cifar(21), InvalidArgument);
  EXPECT_THROW(models::resnet_cifar(2), InvalidArgument);
}

TEST(ResNet, OfBasicBlocksIsWhatItsFormulasSay) {
  torch::manual_seed(1);
  const at::NoGradGuard no_grad;
  const at::Tensor image = torch::randn({2, 1, 28, 28});
  Pipeline pipeline = evaluating(models::resnet(ResNetOptions(18).num_classes(10).in_channels(1)));
  expect_close(pipeline->forward(image), imagenet_forward(State(*pipeline), {2, 2, 2, 2}, false, image), 1e-3);
}

TEST(ResNet, OfBottlenecksIsWhatItsFormulasSay) {
  torch::manual_seed(1);
  const at::NoGradGuard no_grad;
  const at::Tensor image = torch::randn({2, 3, 32, 32});
  Pipeline pipeline = evaluating(models::resnet50(10));
  expect_close(pipeline->forward(image), imagenet_forward(State(*pipeline), {3, 4, 6, 3}, true, image), 1e-3);
}

TEST(ResNet, HasTheStateNamesOfThePublicWeights) {
  for (const bool deferred : {true, false}) {
    const State state(*Pipeline(models::resnet(ResNetOptions(18).deferred_batch_norm(deferred)), PipelineOptions(1)));
    EXPECT_EQ(state.tensors().size(), 122);
    for (const char* name :
         {"conv1.weight", "bn1.running_var", "layer1.0.conv2.weight", "layer2.0.downsample.0.weight",
          "layer2.0.downsample.1.running_mean", "layer4.1.bn2.num_batches_tracked", "fc.weight", "fc.bias"}) {
      EXPECT_TRUE(state.has(name)) << name;
    }
  }
}

TEST(ResNet, RefusesADepthThatIsNone) { EXPECT_THROW(models::resnet(34), InvalidArgument); }

}  // namespace
}  // namespace gpipe::test
