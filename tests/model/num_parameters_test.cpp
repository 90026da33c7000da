// Counting parameters, and the scope in which large weights stay unfilled.
#include "gpipe/model/num_parameters.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/model/no_init_scope.h"
#include "tests/model/same_bits.h"

namespace gpipe::test {
namespace {

LayerChain three_layers() {
  LayerChain chain;
  chain.add<torch::nn::Embedding>("embedding", 10, 4);
  chain.add<torch::nn::BatchNorm1d>("norm", torch::nn::BatchNormOptions(4));
  chain.add<torch::nn::Linear>("head", 4, 10);
  return chain;
}

TEST(NumParameters, CountsParametersAndNoBuffers) {
  EXPECT_EQ(num_parameters_by_layer(three_layers()), (std::vector<std::int64_t>{40, 8, 50}));
  EXPECT_EQ(num_parameters(three_layers()), 98);
}

TEST(NumParameters, CountsATiedWeightOnceAtItsOwner) {
  EXPECT_EQ(num_parameters_by_layer(three_layers().tie("embedding.weight", "head.weight")),
            (std::vector<std::int64_t>{40, 8, 10}));
  EXPECT_EQ(num_parameters_by_layer(three_layers().tie("head.weight", "embedding.weight")),
            (std::vector<std::int64_t>{0, 8, 50}));
}

TEST(NumParameters, LeavesTheWeightsOfLaterPipelinesAsTheyAre) {
  const LayerChain chain = three_layers();
  const at::Tensor before = chain.build(2, 1).module->named_parameters()["weight"].clone();
  num_parameters(chain);
  EXPECT_TRUE(same_bits(chain.build(2, 1).module->named_parameters()["weight"], before));
}

TEST(NoInitScope, LeavesLargeTensorsUnfilledAndFillsSmallOnes) {
  const at::Tensor large = at::full({256, 256}, 7.0);
  const at::Tensor small = at::full({255, 256}, 7.0);
  {
    const NoInitScope scope;
    large.fill_(1);
    large.zero_();
    large.uniform_();
    large.normal_();
    small.fill_(1);
    EXPECT_TRUE(at::zeros({10}).eq(0).all().item<bool>());
    EXPECT_TRUE(at::ones({10}).eq(1).all().item<bool>());
  }
  EXPECT_TRUE(large.eq(7).all().item<bool>());
  EXPECT_TRUE(small.eq(1).all().item<bool>());
  large.fill_(2);
  EXPECT_TRUE(large.eq(2).all().item<bool>());
}

TEST(NoInitScope, ChangesNothingButFilling) {
  const NoInitScope scope;
  const at::Tensor sum = at::arange(100000).to(at::kDouble).add_(1).sum();
  EXPECT_EQ(sum.item<double>(), 100000.0 * 100001 / 2);
}

TEST(NoInitScope, Nests) {
  const at::Tensor large = at::full({70000}, 7.0);
  const NoInitScope outer;
  { const NoInitScope inner; }
  large.zero_();
  EXPECT_TRUE(large.eq(7).all().item<bool>());
}

}  // namespace
}  // namespace gpipe::test
