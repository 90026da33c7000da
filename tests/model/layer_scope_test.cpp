// The random streams of layer scopes: which numbers they give, and that scopes do not disturb one another.
#include "gpipe/model/layer_scope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace gpipe {
namespace {

LayerRun run_of(int layer) {
  LayerRun run;
  run.seed = 7;
  run.step = 3;
  run.layer = layer;
  run.micro_batch = 2;
  return run;
}

std::vector<std::int64_t> draw(int count) {
  const at::Tensor numbers = at::randint(1000000, {count}, at::kLong);
  return {numbers.data_ptr<std::int64_t>(), numbers.data_ptr<std::int64_t>() + count};
}

std::vector<std::int64_t> draw_alone(int layer, int count) {
  const LayerScope scope(run_of(layer));
  return draw(count);
}

TEST(LayerScope, DrawsTheNumbersItAlwaysDrew) {
  EXPECT_THAT(draw_alone(5, 4), testing::ElementsAre(152071, 647238, 409222, 623900));
  EXPECT_THAT(draw_alone(6, 4), testing::ElementsAre(999567, 960854, 50103, 658952));
}

TEST(LayerScope, KeepsTheOuterStreamWhereItWasWhenAnInnerScopeDraws) {
  const std::vector<std::int64_t> outer = draw_alone(5, 6);
  const std::vector<std::int64_t> inner = draw_alone(6, 3);
  const LayerScope scope(run_of(5));
  std::vector<std::int64_t> drawn;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(draw_alone(6, 3), inner);
    for (const std::int64_t number : draw(2)) drawn.push_back(number);
  }
  EXPECT_EQ(drawn, outer);
}

TEST(LayerScope, DrawsTheSameNumbersAfterAnInnerScopeThatDrewFirst) {
  const std::vector<std::int64_t> alone = draw_alone(5, 4);
  const LayerScope outer(run_of(5));
  {
    const LayerScope same(run_of(5));
    EXPECT_EQ(draw(4), alone);
  }
  { const LayerScope silent(run_of(6)); }
  EXPECT_EQ(draw(4), alone);
}

TEST(LayerScope, ForgetsTheSecondHalfOfANormalPair) {
  const auto normal = [] {
    const LayerScope scope(run_of(5));
    return at::normal(0.0, 1.0, {1}).item<float>();
  };
  const float first = normal();
  EXPECT_EQ(normal(), first);
}

TEST(LayerScope, LeavesDrawsOutsideAlone) {
  torch::manual_seed(1);
  const std::vector<std::int64_t> expected = draw(4);
  torch::manual_seed(1);
  draw_alone(5, 3);
  EXPECT_EQ(draw(4), expected);
}

}  // namespace
}  // namespace gpipe
