// What the models are given of an image.
#include "train/image_task.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace gpipe::train {
namespace {

// Worked out by hand: (p / 255 - mean) / deviation.
TEST(NormalizedImages, HaveTheMeanAndTheDeviationOfTheirChannel) {
  at::Tensor pixels = torch::zeros({2, 3, 2, 2}, torch::kByte);
  pixels[1].fill_(255);
  pixels[1][2][0][1] = 51;
  const at::Tensor images = normalized_images("cifar10", pixels);
  ASSERT_EQ(images.sizes(), pixels.sizes());
  const at::Tensor expected = torch::empty({2, 3, 2, 2});
  const float black[] = {-2.117904F, -2.035714F, -1.804444F};
  const float white[] = {2.248908F, 2.428571F, 2.640000F};
  for (int channel = 0; channel < 3; ++channel) {
    expected[0][channel].fill_(black[channel]);
    expected[1][channel].fill_(white[channel]);
  }
  expected[1][2][0][1] = -0.915556F;
  EXPECT_TRUE(torch::allclose(images, expected, 1e-5, 1e-5)) << images;
}

TEST(NormalizedImages, OfOneChannel) {
  const at::Tensor images = normalized_images("fashion-mnist", torch::full({1, 1, 1, 1}, 102, torch::kByte));
  EXPECT_NEAR(images.item<float>(), 0.322946F, 1e-5F);
}

TEST(NormalizedImages, OfAnUnknownSetAreRefused) {
  EXPECT_THROW(normalized_images("cifar100", torch::zeros({1, 3, 1, 1}, torch::kByte)), InvalidArgument);
}

}  // namespace
}  // namespace gpipe::train
