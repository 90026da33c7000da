#include "gpipe/model/autocast_scope.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/model/autocast.h"

namespace gpipe {
namespace {

at::ScalarType type_of_product() { return torch::matmul(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(); }

TEST(AutocastScope, HoldsUntilItsEndAndWithinAnother) {
  const at::ScalarType before = autocast::dtype(at::kCPU);
  EXPECT_EQ(type_of_product(), at::kFloat);
  {
    const AutocastScope outer(at::kCPU, at::kBFloat16);
    EXPECT_EQ(type_of_product(), at::kBFloat16);
    { const AutocastScope inner(at::kCPU, at::kBFloat16); }
    EXPECT_EQ(type_of_product(), at::kBFloat16);
  }
  EXPECT_EQ(type_of_product(), at::kFloat);
  EXPECT_EQ(autocast::dtype(at::kCPU), before);
}

}  // namespace
}  // namespace gpipe
