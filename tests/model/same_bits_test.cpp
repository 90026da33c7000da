// The comparison that all bitwise tests rely on.
#include "tests/model/same_bits.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

namespace gpipe::test {
namespace {

using ::testing::HasSubstr;

at::Tensor float_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return torch::full({}, value);
}

std::string difference(const at::Tensor& got, const at::Tensor& expected) { return same_bits(got, expected).message(); }

TEST(SameBits, EqualTensorsHaveThem) {
  const at::Tensor values = torch::arange(12, torch::kFloat).view({3, 4});
  EXPECT_TRUE(same_bits(values, values.clone()));
  EXPECT_TRUE(same_bits(torch::empty({0, 3}), torch::empty({0, 3})));
  EXPECT_TRUE(same_bits(at::Tensor(), at::Tensor()));
}

TEST(SameBits, MinusZeroIsNotZero) {
  EXPECT_TRUE(torch::equal(torch::tensor({-0.0F}), torch::tensor({0.0F})));
  EXPECT_FALSE(same_bits(torch::tensor({-0.0F}), torch::tensor({0.0F})));
  EXPECT_THAT(difference(torch::tensor({1.5F, -0.0F}), torch::tensor({1.5F, 0.0F})),
              HasSubstr("element [1] is -0 (0x80000000), expected 0 (0x00000000); 1 of 2 elements differ"));
}

TEST(SameBits, ANanIsTheSameAsOneOfTheSameBytes) {
  EXPECT_FALSE(torch::equal(float_of(0x7fc00000), float_of(0x7fc00000)));
  EXPECT_TRUE(same_bits(float_of(0x7fc00000), float_of(0x7fc00000)));
  EXPECT_THAT(difference(float_of(0x7fc00001), float_of(0x7fc00000)),
              HasSubstr("(0x7fc00001), expected nan (0x7fc00000)"));
}

TEST(SameBits, TheFirstDifferenceIsNamedByItsPlaceValuesAndBytes) {
  const at::Tensor expected = torch::zeros({2, 3, 4}, torch::kDouble);
  at::Tensor got = expected.clone();
  got[1][0][2] = 0.1;
  got[1][2][3] = 7;
  EXPECT_THAT(difference(got, expected),
              HasSubstr("element [1, 0, 2] is 0.10000000000000001 (0x3fb999999999999a), expected 0 "
                        "(0x0000000000000000); 2 of 24 elements differ"));
  EXPECT_THAT(difference(torch::tensor(-1), torch::tensor(2)), HasSubstr("element [] is -1 (0xffffffffffffffff)"));
  EXPECT_THAT(difference(torch::tensor(true), torch::tensor(false)), HasSubstr("is 1 (0x01), expected 0 (0x00)"));
  EXPECT_THAT(difference(torch::ones({1}, torch::kBFloat16), torch::zeros({1}, torch::kBFloat16)),
              HasSubstr("is 1 (0x3f80)"));
  EXPECT_THAT(difference(torch::ones({1}, torch::kComplexFloat), torch::zeros({1}, torch::kComplexFloat)),
              HasSubstr("is 1+0i (0x000000003f800000)"));
}

TEST(SameBits, TypesAndSizesCount) {
  EXPECT_THAT(difference(torch::zeros({2}), torch::zeros({2}, torch::kInt)),
              HasSubstr("the type is Float, expected Int"));
  EXPECT_THAT(difference(torch::zeros({2, 3}), torch::zeros({3, 2})),
              HasSubstr("the sizes are [2, 3], expected [3, 2]"));
  EXPECT_FALSE(same_bits(torch::zeros({}), torch::zeros({1})));
  EXPECT_THAT(difference(at::Tensor(), torch::zeros({1})), HasSubstr("there is no tensor"));
  EXPECT_THAT(difference(torch::zeros({1}), at::Tensor()), HasSubstr("there should be no tensor"));
}

TEST(SameBits, StridesAndViewsDoNotCount) {
  const at::Tensor values = torch::randn({4, 6});
  EXPECT_TRUE(same_bits(values.t(), values.t().contiguous()));
  EXPECT_TRUE(same_bits(values.slice(1, 0, 6, 2), values.slice(1, 0, 6, 2).clone()));
  EXPECT_TRUE(same_bits(values.clone().requires_grad_(true), values));
  const at::Tensor numbers = torch::randn({3}, torch::kComplexFloat);
  EXPECT_TRUE(same_bits(numbers.conj(), numbers.conj().resolve_conj()));
  EXPECT_FALSE(same_bits(numbers.conj(), numbers));
}

TEST(SameBits, ListsNeedTheSameLengthAndTensors) {
  const at::Tensor one = torch::ones({2});
  EXPECT_TRUE(same_bits({one, at::Tensor()}, std::vector<at::Tensor>{one.clone(), at::Tensor()}));
  EXPECT_THAT(same_bits({one}, std::vector<at::Tensor>{one, one}).message(),
              HasSubstr("there are 1 tensors, expected 2"));
  EXPECT_THAT(same_bits({one, one}, std::vector<at::Tensor>{one, 2 * one}).message(),
              HasSubstr("tensor 1: element [0] is 1 "));
}

TEST(SameBits, OfAModuleAreThoseOfItsGradientsAndBuffersToo) {
  const auto make = [] {
    torch::manual_seed(1);
    return torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
  };
  static torch::nn::Sequential one{nullptr};
  static torch::nn::Sequential other{nullptr};
  one = make();
  other = make();
  expect_same_bits(*one, *other);
  one->parameters().front().mutable_grad() = torch::zeros({2, 2});
  EXPECT_NONFATAL_FAILURE(expect_same_bits(*one, *other), "gradient of 0.weight");
  other->parameters().front().mutable_grad() = torch::zeros({2, 2});
  expect_same_bits(*one, *other);
  other->buffers().front().add_(1);
  EXPECT_NONFATAL_FAILURE(expect_same_bits(*one, *other), "running_mean");
}

TEST(SameBits, OfMapsAreByName) {
  using Values = std::map<std::string, at::Tensor>;
  static const Values one = {{"a", torch::ones({2})}, {"b", at::Tensor()}};
  static const Values other = {{"a", torch::ones({2})}, {"b", torch::ones({2})}};
  expect_same_values(one, one);
  EXPECT_NONFATAL_FAILURE(expect_same_values(one, other), "there is no tensor");
}

}  // namespace
}  // namespace gpipe::test
