// FLOPs of operations and layers equal those of the formulas, on the CPU and on the Meta device.
#include "gpipe/model/flop_counter.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "gpipe/model/meta_kernels.h"

namespace gpipe {
namespace {

namespace F = torch::nn::functional;

template <typename Function>
std::int64_t flops(const Function& function) {
  const FlopCounter counter;
  function();
  return counter.flops();
}

class FlopCounterTest : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  FlopCounterTest() { use_meta_kernels(); }

  static torch::Tensor tensor(at::IntArrayRef sizes, bool requires_grad = false) {
    return torch::ones(sizes, torch::TensorOptions(GetParam()).requires_grad(requires_grad));
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, FlopCounterTest, ::testing::Values(c10::kCPU, c10::kMeta),
                         [](const auto& param_info) { return param_info.param == c10::kCPU ? "Cpu" : "Meta"; });

TEST_P(FlopCounterTest, CountsTwoPerMultiplyAddOfAMatrixProduct) {
  const torch::Tensor a = tensor({3, 5});
  const torch::Tensor b = tensor({5, 7});
  EXPECT_EQ(flops([&] { a.mm(b); }), 2 * 3 * 5 * 7);
  EXPECT_EQ(flops([&] { a.matmul(b); }), 2 * 3 * 5 * 7);
  EXPECT_EQ(flops([&] { torch::addmm(tensor({7}), a, b); }), 2 * 3 * 5 * 7);
  EXPECT_EQ(flops([&] { tensor({3, 7}).addmm_(a, b); }), 2 * 3 * 5 * 7);
  EXPECT_EQ(flops([&] { tensor({4, 3, 5}).bmm(tensor({4, 5, 7})); }), 2 * 4 * 3 * 5 * 7);
  EXPECT_EQ(flops([&] { torch::baddbmm(tensor({4, 3, 7}), tensor({4, 3, 5}), tensor({4, 5, 7})); }), 2 * 4 * 3 * 5 * 7);
  EXPECT_EQ(flops([&] { F::linear(a, tensor({7, 5}), tensor({7})); }), 2 * 3 * 5 * 7);
  EXPECT_EQ(flops([&] { F::linear(tensor({2, 3, 5}), tensor({7, 5})); }), 2 * 2 * 3 * 5 * 7);
}

TEST_P(FlopCounterTest, CountsOnePerElementOfEverythingElse) {
  const torch::Tensor a = tensor({3, 5});
  EXPECT_EQ(flops([&] { a + a; }), 15);
  EXPECT_EQ(flops([&] { a.relu(); }), 15);
  EXPECT_EQ(flops([&] { a.sum(0); }), 5);
  EXPECT_EQ(flops([&] { tensor({3, 5}).mul_(2); }), 15);
  EXPECT_EQ(flops([&] { torch::cat({a, a}); }), 30);
}

TEST_P(FlopCounterTest, CountsNothingForViewsEmptyTensorsAndIntegers) {
  const torch::Tensor a = tensor({4, 6});
  EXPECT_EQ(flops([&] { a.view({24}).unsqueeze(0).expand({5, 24}).detach().t(); }), 0);
  EXPECT_EQ(flops([&] { torch::empty_like(a).resize_({2}); }), 0);
  EXPECT_EQ(flops([&] { a.unbind(0); }), 0);
  EXPECT_EQ(flops([&] { tensor({4, 6}).transpose_(0, 1).unsqueeze_(0).detach_(); }), 0);
  EXPECT_EQ(flops([&] { tensor({4, 6}); }), 0);
  EXPECT_EQ(flops([&] { torch::ones({3}, torch::TensorOptions(GetParam()).dtype(torch::kLong)) + 1; }), 0);
}

TEST_P(FlopCounterTest, CountsConvolutionsWithStridePaddingDilationAndGroups) {
  const torch::Tensor input = tensor({2, 6, 11, 13});
  EXPECT_EQ(flops([&] { F::conv2d(input, tensor({8, 6, 3, 5})); }), 2 * (2 * 8 * 9 * 9) * (6 * 3 * 5));
  EXPECT_EQ(
      flops([&] {
        F::conv2d(input, tensor({9, 2, 3, 3}), F::Conv2dFuncOptions().bias(tensor({9})).stride(2).padding(1).groups(3));
      }),
      2 * (2 * 9 * 6 * 7) * (2 * 3 * 3));
  EXPECT_EQ(flops([&] {
              F::conv2d(input, tensor({8, 6, 3, 3}), F::Conv2dFuncOptions().dilation(2));
            }),
            2 * (2 * 8 * 7 * 9) * (6 * 3 * 3));
  EXPECT_EQ(flops([&] { F::conv1d(tensor({2, 6, 11}), tensor({8, 6, 3})); }), 2 * (2 * 8 * 9) * (6 * 3));
}

// Every element of the input is multiplied with all weights of its channel.
TEST_P(FlopCounterTest, CountsTransposedConvolutions) {
  const torch::Tensor input = tensor({2, 6, 5, 7}, true);
  torch::Tensor output;
  const std::int64_t expected = 2 * (2 * 6 * 5 * 7) * (4 * 3 * 3);
  EXPECT_EQ(
      flops([&] {
        output = F::conv_transpose2d(input, tensor({6, 4, 3, 3}, true), F::ConvTranspose2dFuncOptions().stride(2));
      }),
      expected);
  EXPECT_EQ(flops([&] { output.backward(output); }), 2 * expected);
}

TEST_P(FlopCounterTest, CountsBothGradientsOfAConvolutionAndOnlyWhatIsAskedFor) {
  const std::int64_t forward = 2 * (2 * 8 * 5 * 6) * (6 * 3 * 3);
  const auto backward_flops = [](bool input_grad, bool weight_grad) {
    const torch::Tensor output = F::conv2d(tensor({2, 6, 11, 13}, input_grad), tensor({8, 6, 3, 3}, weight_grad),
                                           F::Conv2dFuncOptions().stride(2));
    return flops([&] { output.backward(output); });
  };
  EXPECT_EQ(backward_flops(true, true), 2 * forward);
  EXPECT_EQ(backward_flops(false, true), forward);
  EXPECT_EQ(backward_flops(true, false), forward);
}

TEST_P(FlopCounterTest, CountsTheBackwardOfALinearLayerInTheThreadThatCallsIt) {
  const torch::Tensor output = F::linear(tensor({3, 5}, true), tensor({7, 5}, true), tensor({7}, true));
  EXPECT_EQ(flops([&] { output.backward(tensor({3, 7})); }), 2 * (2 * 3 * 5 * 7) + 7);  // and the bias' sum
}

TEST_P(FlopCounterTest, TellsProductsFromTheRest) {
  const torch::Tensor a = tensor({3, 5});
  FlopCounter counter;
  F::linear(a, tensor({7, 5})).relu();
  EXPECT_EQ(counter.product_flops(), 2 * 3 * 5 * 7);
  EXPECT_EQ(counter.flops(), 2 * 3 * 5 * 7 + 3 * 7);
  counter.reset();
  F::conv1d(tensor({2, 6, 11}), tensor({8, 6, 3})).exp();
  EXPECT_EQ(counter.product_flops(), 2 * (2 * 8 * 9) * (6 * 3));
}

TEST_P(FlopCounterTest, EachOfTheNestedOnesCountsAll) {
  FlopCounter outer;
  const torch::Tensor a = tensor({3, 5});
  a + a;
  {
    const FlopCounter inner;
    a + a;
    EXPECT_EQ(inner.flops(), 15);
  }
  a + a;
  EXPECT_EQ(outer.flops(), 45);
  outer.reset();
  a + a;
  EXPECT_EQ(outer.flops(), 15);
}

TEST_P(FlopCounterTest, CountsNothingOfOtherThreadsAndBetweenCounters) {
  const torch::Tensor a = tensor({3, 5});
  EXPECT_EQ(flops([&] { std::thread([&] { a + a; }).join(); }), 0);
  a + a;
  EXPECT_EQ(flops([&] { a + a; }), 15);
}

TEST_P(FlopCounterTest, GoesOnAfterAnOperationThatFails) {
  const torch::Tensor a = tensor({3, 5});
  const FlopCounter counter;
  EXPECT_THROW(a.mm(a), c10::Error);
  a + a;
  EXPECT_EQ(counter.flops(), 15);
}

TEST_P(FlopCounterTest, CountsInInferenceMode) {
  const c10::InferenceMode inference;
  const torch::Tensor a = tensor({3, 5});
  EXPECT_EQ(flops([&] { F::linear(a, tensor({7, 5})); }), 2 * 3 * 5 * 7);
}

}  // namespace
}  // namespace gpipe
