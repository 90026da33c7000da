// AmoebaNet-D against a second implementation of it, cell by cell as formulas.
#include "models/amoebanet.h"

#include <gtest/gtest.h>

#include "tests/models/state.h"

namespace gpipe::test {
namespace {

using models::AmoebaNetOptions;

struct Formulas {
  const State& state;

  at::Tensor relu_conv_norm(const at::Tensor& x, const std::string& name, int at, at::IntArrayRef stride,
                            at::IntArrayRef padding) const {
    const at::Tensor y = state.conv(x.clamp_min(0), name + "." + std::to_string(at + 1), stride, padding);
    return state.batch_norm(y, name + "." + std::to_string(at + 2));
  }
  at::Tensor conv1x1(const at::Tensor& x, const std::string& name, int s = 1) const {
    return relu_conv_norm(x, name, 0, {s, s}, {0, 0});
  }
  at::Tensor conv3x3(const at::Tensor& x, const std::string& name, int s) const {
    at::Tensor y = relu_conv_norm(x, name, 0, {1, 1}, {0, 0});
    y = relu_conv_norm(y, name, 3, {s, s}, {1, 1});
    return relu_conv_norm(y, name, 6, {1, 1}, {0, 0});
  }
  at::Tensor conv1x7(const at::Tensor& x, const std::string& name) const {
    at::Tensor y = relu_conv_norm(x, name, 0, {1, 1}, {0, 0});
    y = relu_conv_norm(y, name, 3, {1, 1}, {0, 3});
    y = relu_conv_norm(y, name, 6, {1, 1}, {3, 0});
    return relu_conv_norm(y, name, 9, {1, 1}, {0, 0});
  }
  // Over the pixels there are, without padding.
  static at::Tensor average3x3(const at::Tensor& x) {
    const at::Tensor sums = at::avg_pool2d(x, 3, 1, 1) * 9;
    return sums / (at::avg_pool2d(at::ones_like(x), 3, 1, 1) * 9);
  }
  static at::Tensor max3x3(const at::Tensor& x, int s = 1) { return at::max_pool2d(x, 3, s, 1); }
  static at::Tensor max2x2(const at::Tensor& x) {
    const at::Tensor even = at::constant_pad_nd(x, {0, x.size(3) % 2, 0, x.size(2) % 2}, -INFINITY);
    return at::max_pool2d(even, 2, 2);
  }

  at::Tensor skip_in(const at::Tensor& skip, const std::string& cell) const {
    const std::string name = cell + ".skip_in";
    if (state.has(name + ".1.weight")) return conv1x1(skip, name);
    if (!state.has(name + ".0.even.weight")) return skip;
    const at::Tensor x = skip.clamp_min(0);
    const at::Tensor odd = at::constant_pad_nd(x, {-1, 1, -1, 1});
    return state.batch_norm(
        at::cat({state.conv(x, name + ".0.even", {2, 2}, {0, 0}), state.conv(odd, name + ".0.odd", {2, 2}, {0, 0})}, 1),
        name + ".0.norm.0");
  }

  at::Tensor normal(const at::Tensor& s, const at::Tensor& k, const std::string& cell) const {
    const at::Tensor h = conv1x1(s, cell + ".state_in");
    const at::Tensor p = skip_in(k, cell);
    const at::Tensor a = conv1x1(p, cell + ".operation0") + max3x3(p);
    const at::Tensor b = p + conv1x7(h, cell + ".operation3");
    const at::Tensor c = conv1x1(h, cell + ".operation4") + conv1x7(h, cell + ".operation5");
    const at::Tensor d = max3x3(a) + a;
    const at::Tensor e = average3x3(p) + conv1x1(d, cell + ".operation9");
    return at::cat({h, b, c, e}, 1);
  }

  at::Tensor reduction(const at::Tensor& s, const at::Tensor& k, const std::string& cell) const {
    const at::Tensor h = conv1x1(s, cell + ".state_in");
    const at::Tensor p = skip_in(k, cell);
    const at::Tensor a = max2x2(h) + max3x3(h, 2);
    const at::Tensor b = a + conv3x3(p, cell + ".operation3", 2);
    const at::Tensor c = conv1x7(a, cell + ".operation4") + max3x3(a);
    const at::Tensor d = b + max2x2(p);
    const at::Tensor e = average3x3(a) + conv1x1(b, cell + ".operation9");
    return at::cat({c, d, e}, 1);
  }
};

void expect_equal_to_the_formulas(const AmoebaNetOptions& options, const at::Tensor& image) {
  Pipeline pipeline = evaluating(models::amoebanet_d(options));
  const State state(*pipeline);
  const Formulas formulas{state};
  const auto stride = options.stem_stride();
  at::Tensor x = state.batch_norm(state.conv(image, "stem.layers.0", {stride, stride}, {1, 1}), "stem.layers.1");
  at::Tensor skip = x;
  const auto step = [&](const at::Tensor& next) {
    skip = x;
    x = next;
  };
  for (int cell = 0; cell < options.stem_reductions(); ++cell) {
    step(formulas.reduction(x, skip, "stem_reduction" + std::to_string(cell)));
  }
  for (int group = 0; group < 3; ++group) {
    if (group > 0) step(formulas.reduction(x, skip, "reduction" + std::to_string(group)));
    for (int cell = 0; cell < options.num_layers() / 3; ++cell) {
      step(formulas.normal(x, skip, "group" + std::to_string(group) + "_cell" + std::to_string(cell)));
    }
  }
  const at::Tensor logits = state.linear(x.flatten(2).mean(2), "classifier.linear");
  const at::NoGradGuard no_grad;
  expect_close(pipeline->forward(image), logits);
}

TEST(AmoebaNet, IsWhatItsFormulasSay) {
  torch::manual_seed(1);
  expect_equal_to_the_formulas(AmoebaNetOptions(6, 16).num_classes(7), torch::rand({3, 3, 64, 64}));
}

TEST(AmoebaNet, TakesImagesOf28PixelsWhoseMapsBecomeOdd) {
  torch::manual_seed(1);
  const at::Tensor image = torch::rand({3, 1, 28, 28});
  expect_equal_to_the_formulas(AmoebaNetOptions(3, 16).num_classes(10).in_channels(1), image);
  for (const int reductions : {0, 1, 2}) {
    expect_equal_to_the_formulas(
        AmoebaNetOptions(3, 16).num_classes(10).in_channels(1).stem_stride(1).stem_reductions(reductions), image);
  }
}

TEST(AmoebaNet, HasTheSameNamesWithPlainBatchNorm) {
  const auto names = [](bool deferred) {
    Pipeline pipeline(models::amoebanet_d(AmoebaNetOptions(3, 8).deferred_batch_norm(deferred)), PipelineOptions(1));
    std::vector<std::string> keys = pipeline->named_parameters().keys();
    for (const std::string& key : pipeline->named_buffers().keys()) keys.push_back(key);
    return keys;
  };
  EXPECT_EQ(names(true), names(false));
}

TEST(AmoebaNet, RefusesSizesItCannotBeBuiltFromAndNamesThem) {
  const auto message = [](const AmoebaNetOptions& options) -> std::string {
    try {
      models::amoebanet_d(options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(AmoebaNetOptions(4, 32)), "num_layers is 4; it must be a multiple of 3");
  EXPECT_EQ(message(AmoebaNetOptions(3, 20)), "num_filters is 20; it must be a multiple of 8");
  EXPECT_EQ(message(AmoebaNetOptions(0, 32)), "num_layers is 0; it must be at least 1");
  EXPECT_EQ(message(AmoebaNetOptions(3, 32).num_classes(0)), "num_classes is 0; it must be at least 1");
  EXPECT_EQ(message(AmoebaNetOptions(3, 32).stem_reductions(4)), "stem_reductions is 4; it must be at most 3");
}

}  // namespace
}  // namespace gpipe::test
