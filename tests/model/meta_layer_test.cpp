// Layers without memory: everything about them is there, except their data.
#include "gpipe/model/meta_layer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

namespace gpipe {
namespace {

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * std::int64_t{1024};
}

TEST(MetaLayerTest, HasParametersAndBuffersOfTheSameShapesAndTypes) {
  LayerChain chain;
  chain.add<torch::nn::BatchNorm2d>("norm", torch::nn::BatchNormOptions(7));
  const Layer layer = build_on_meta(chain, 0);
  const Layer on_cpu = chain.build(0, 0);
  const auto compare = [](const auto& on_meta, const auto& expected) {
    ASSERT_EQ(on_meta.size(), expected.size());
    for (const auto& item : expected) {
      const torch::Tensor& tensor = on_meta[item.key()];
      EXPECT_TRUE(tensor.is_meta()) << item.key();
      EXPECT_EQ(tensor.sizes(), item.value().sizes()) << item.key();
      EXPECT_EQ(tensor.strides(), item.value().strides()) << item.key();
      EXPECT_EQ(tensor.scalar_type(), item.value().scalar_type()) << item.key();
      EXPECT_EQ(tensor.requires_grad(), item.value().requires_grad()) << item.key();
    }
  };
  compare(layer.module->named_parameters(), on_cpu.module->named_parameters());
  compare(layer.module->named_buffers(), on_cpu.module->named_buffers());
}

TEST(MetaLayerTest, RunsForwardAndBackwardIntoItsGradients) {
  LayerChain chain;
  chain.add<torch::nn::Linear>("linear", 5, 7);
  const Layer layer = build_on_meta(chain, 0);
  const torch::Tensor output = layer.forward({torch::ones({3, 5}, torch::kMeta)}).front();
  EXPECT_EQ(output.sizes(), at::IntArrayRef({3, 7}));
  output.sum().backward();
  for (const torch::Tensor& parameter : layer.module->parameters()) {
    ASSERT_TRUE(parameter.grad().defined());
    EXPECT_TRUE(parameter.grad().is_meta());
    EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
  }
}

TEST(MetaLayerTest, MovesTheTensorsThatTheModuleHolds) {
  torch::nn::Linear linear(5, 7);
  linear->weight.mutable_grad() = torch::ones({7, 5});
  const torch::Tensor held = linear->weight;
  move_to_meta(*linear);
  EXPECT_TRUE(linear->weight.is_meta());
  EXPECT_TRUE(linear->weight.is_same(held));
  EXPECT_TRUE(linear->weight.requires_grad());
  EXPECT_FALSE(linear->weight.grad().defined());
  move_to_meta(*linear);
  EXPECT_TRUE(linear->bias.is_meta());
}

TEST(MetaLayerTest, OfFourGigabytesTakesNone) {
  LayerChain chain;
  chain.add<torch::nn::Linear>("huge", 32768, 32768);
  build_on_meta(chain, 0);  // what libtorch needs at its first use
  const std::int64_t before = peak_resident_bytes();
  const Layer layer = build_on_meta(chain, 0);
  layer.forward({torch::ones({1024, 32768}, torch::kMeta)}).front().sum().backward();
  EXPECT_LT(peak_resident_bytes() - before, 64 << 20);
}

}  // namespace
}  // namespace gpipe
