// U-Net against a second implementation of it.
#include "models/unet.h"

#include <gtest/gtest.h>

#include "tests/models/state.h"

namespace gpipe::test {
namespace {

using models::UNetOptions;

at::Tensor convs(const State& state, at::Tensor x, const std::string& level, int count) {
  for (int conv = 0; conv < count; ++conv) {
    x = state.conv(x, level + ".conv" + std::to_string(conv), {1, 1}, {1, 1});
    const at::Tensor centred = x - x.mean({2, 3}, true);
    x = centred / (centred.square().mean({2, 3}, true) + 1e-5).sqrt();
    x = at::where(x > 0, x, x * 0.01);
  }
  return x;
}

// Recursive: what comes up from a level, given what goes down into it.
at::Tensor level_forward(const State& state, const at::Tensor& x, int level, const UNetOptions& options) {
  const int count = static_cast<int>(options.num_convs());
  if (level == options.depth()) return convs(state, x, "bottleneck", count);
  const std::string number = std::to_string(level);
  const at::Tensor skip = convs(state, x, "down" + number, count);
  at::Tensor up = level_forward(state, at::max_pool2d(skip, 2), level + 1, options);
  up = up.repeat_interleave(2, 2).repeat_interleave(2, 3);
  const at::Tensor fitted = at::zeros({up.size(0), up.size(1), skip.size(2), skip.size(3)});
  fitted.slice(2, 0, up.size(2)).slice(3, 0, up.size(3)).copy_(up);
  return convs(state, at::cat({fitted, skip}, 1), "up" + number, count);
}

void expect_equal_to_the_formulas(const UNetOptions& options, at::IntArrayRef shape) {
  torch::manual_seed(1);
  const at::NoGradGuard no_grad;
  const at::Tensor image = torch::randn(shape);
  Pipeline pipeline = evaluating(models::unet(options));
  const State state(*pipeline);
  const at::Tensor expected = state.conv(level_forward(state, image, 0, options), "head", {1, 1}, {0, 0});
  expect_close(pipeline->forward(image), expected);
}

TEST(UNet, IsWhatItsFormulasSay) {
  expect_equal_to_the_formulas(UNetOptions(2, 3, 8).out_channels(2), {3, 3, 16, 16});
  expect_equal_to_the_formulas(UNetOptions(3, 1, 4).in_channels(1), {2, 1, 16, 32});
}

TEST(UNet, TakesMapsThatBecomeOdd) { expect_equal_to_the_formulas(UNetOptions(2, 2, 4), {2, 3, 22, 19}); }

TEST(UNet, RefusesSizesItCannotBeBuiltFrom) {
  EXPECT_THROW(models::unet(UNetOptions(0, 5, 64)), InvalidArgument);
  EXPECT_THROW(models::unet(UNetOptions(5, 0, 64)), InvalidArgument);
  EXPECT_THROW(models::unet(UNetOptions(5, 5, 63)), InvalidArgument);
  EXPECT_THROW(models::unet(UNetOptions(5, 5, 64).dropout(1.5)), InvalidArgument);
}

}  // namespace
}  // namespace gpipe::test
