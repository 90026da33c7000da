#include "gpipe/torchscript/layer_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One letter an operation, H for a heavy one and l for a light one, and one an operation for the cut before it: the
// cost, or x where there may be none.
CutCosts costs_of(const std::string& operations, const std::string& cuts) {
  CutCosts costs;
  for (const char operation : operations) {
    costs.heavy.push_back(operation == 'H' ? 1 : 0);
    costs.is_light.push_back(true);
  }
  for (const char cut : cuts) {
    costs.allowed.push_back(cut != 'x');
    costs.cost.push_back(cut == 'x' ? 0 : cut - '0');
  }
  return costs;
}

TEST(LayerChoice, CutsBeforeTheNextHeavyOperationWhereOneTensorIsHandedOn) {
  EXPECT_THAT(choose_cuts(costs_of("HllHlH",  //
                                   "x11111"),
                          3),
              ElementsAre(3, 5));
}

TEST(LayerChoice, LeavesWideCutsWhereLayersAreSmallEnough) {
  EXPECT_THAT(choose_cuts(costs_of("HHHHHHHH",  //
                                   "x2221222"),
                          2),
              ElementsAre(4));
}

TEST(LayerChoice, CutsLargeLayersWhereLeastIsHandedOn) {
  EXPECT_THAT(choose_cuts(costs_of("HHHHHHHH",  //
                                   "x3332333"),
                          4),
              ElementsAre(2, 4, 6));
}

TEST(LayerChoice, KeepsTogetherWhatMayNotBeCut) {
  EXPECT_THAT(choose_cuts(costs_of("HHHH", "xxx1"), 4), ElementsAre(3));
  EXPECT_THAT(choose_cuts(costs_of("HHHH", "xxxx"), 4), IsEmpty());
}

TEST(LayerChoice, CutsBetweenLightOperationsWhereThereAreFewHeavyOnes) {
  EXPECT_THAT(choose_cuts(costs_of("lHll", "x111"), 16), ElementsAre(1, 2, 3));
  EXPECT_THAT(choose_cuts(costs_of("llllllll", "x1111111"), 8), ElementsAre(4));
}

TEST(LayerChoice, OneOperationIsOneLayer) {
  EXPECT_THAT(choose_cuts(costs_of("H", "x"), 32), IsEmpty());
  EXPECT_THAT(choose_cuts(costs_of("", ""), 32), IsEmpty());
}

}  // namespace
}  // namespace gpipe::detail
