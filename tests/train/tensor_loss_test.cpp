#include "train/tensor_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/error.h"

namespace gpipe::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

double mean(const SummedLoss& loss) { return (loss.sum / loss.count).item<double>(); }

TEST(TensorLoss, CrossEntropyIsThatOfTorchForClassesInTheSecondDimensionAndInTheLast) {
  torch::manual_seed(1);
  const at::Tensor scores = torch::randn({4, 5});
  const at::Tensor classes = torch::tensor({0, 4, 2, 2});
  const double expected = torch::nn::functional::cross_entropy(scores, classes).item<double>();
  EXPECT_NEAR(mean(summed_loss(TensorLoss::kCrossEntropy, {scores}, classes)), expected, 1e-6);

  const at::Tensor pixels = torch::randn({2, 5, 3, 3});
  const at::Tensor labels = torch::randint(5, {2, 3, 3}, at::kLong);
  const double of_pixels = torch::nn::functional::cross_entropy(pixels, labels).item<double>();
  EXPECT_NEAR(mean(summed_loss(TensorLoss::kCrossEntropy, {pixels}, labels)), of_pixels, 1e-6);
  EXPECT_NEAR(mean(summed_loss(TensorLoss::kCrossEntropy, {pixels.movedim(1, -1)}, labels)), of_pixels, 1e-6);
}

TEST(TensorLoss, PlacesWithoutAClassDoNotCount) {
  const at::Tensor scores = torch::tensor({{2.0F, 0.0F}, {0.0F, 3.0F}, {1.0F, 0.0F}});
  const SummedLoss all = summed_loss(TensorLoss::kCrossEntropy, {scores}, torch::tensor({0, 1, 1}), true);
  EXPECT_EQ(all.count.item<int>(), 3);
  EXPECT_EQ(all.num_right, 2);
  const SummedLoss some = summed_loss(TensorLoss::kCrossEntropy, {scores}, torch::tensor({0, -100, 1}), true);
  EXPECT_EQ(some.count.item<int>(), 2);
  EXPECT_EQ(some.num_right, 1);
}

TEST(TensorLoss, MseNeedsTheOutputsShapeAndNeverStretchesATarget) {
  const at::Tensor output = torch::tensor({{1.0F}, {2.0F}, {4.0F}});
  EXPECT_DOUBLE_EQ(mean(summed_loss(TensorLoss::kMse, {output}, torch::zeros({3, 1}))), 7);
  EXPECT_THAT([&] { summed_loss(TensorLoss::kMse, {output}, torch::zeros({3})); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("[3, 1]"), HasSubstr("the target is [3]"))));
  EXPECT_THAT([&] { summed_loss(TensorLoss::kCrossEntropy, {output}, torch::zeros({2}, at::kLong)); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("[3, 1]"), HasSubstr("[2]"))));
}

TEST(TensorLoss, ATargetOfAnotherKindOfNumbersIsRefusedWithTheOtherLoss) {
  EXPECT_THAT([] { check_target(TensorLoss::kCrossEntropy, torch::zeros({2})); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("Float"), HasSubstr("--loss mse"))));
  EXPECT_THAT([] { check_target(TensorLoss::kMse, torch::zeros({2}, at::kLong)); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("Long"), HasSubstr("--loss cross-entropy"))));
  EXPECT_NO_THROW(check_target(TensorLoss::kCrossEntropy, torch::zeros({2}, at::kInt)));
  EXPECT_THAT([] { parse_tensor_loss("mae"); }, ThrowsMessage<InvalidArgument>(HasSubstr("mse")));
}

}  // namespace
}  // namespace gpipe::train
