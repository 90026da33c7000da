// Augmentation: pictures of crops and flips, and draws that depend on nothing but (seed, epoch, sample).
#include "data/augment.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <set>
#include <tuple>

namespace gpipe::data {
namespace {

using ::testing::ElementsAre;

// Two images of one channel,   1 2 3    7  8  9
//                              4 5 6   10 11 12
ImageSet two_images() {
  ImageSet set;
  set.num = 2;
  set.channels = 1;
  set.height = 2;
  set.width = 3;
  set.pixels.resize(12);
  std::iota(set.pixels.begin(), set.pixels.end(), std::uint8_t{1});
  return set;
}

std::vector<std::uint8_t> augmented(const ImageSet& set, std::int64_t sample, const Augmentation& augmentation,
                                    std::int64_t padding) {
  std::vector<std::uint8_t> target(static_cast<std::size_t>(set.image_bytes()), 99);
  augment_image(set, sample, augmentation, padding, target.data());
  return target;
}

TEST(Augment, CropsOutOfThePaddedImage) {
  const ImageSet set = two_images();
  EXPECT_THAT(augmented(set, 0, {1, 1, false}, 1), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(augmented(set, 0, {0, 0, false}, 1), ElementsAre(0, 0, 0, 0, 1, 2));
  EXPECT_THAT(augmented(set, 1, {2, 2, false}, 1), ElementsAre(11, 12, 0, 0, 0, 0));
  EXPECT_THAT(augmented(set, 1, {0, 0, false}, 0), ElementsAre(7, 8, 9, 10, 11, 12));
  EXPECT_THAT(augmented(set, 0, {0, 5, false}, 5), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(augmented(set, 0, {5, 10, false}, 5), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(Augment, FlipsAfterTheCrop) {
  const ImageSet set = two_images();
  EXPECT_THAT(augmented(set, 0, {0, 0, true}, 0), ElementsAre(3, 2, 1, 6, 5, 4));
  EXPECT_THAT(augmented(set, 0, {1, 0, true}, 1), ElementsAre(2, 1, 0, 5, 4, 0));
}

TEST(Augment, TreatsAllChannelsAlike) {
  ImageSet set = two_images();
  set.num = 1;
  set.channels = 2;
  EXPECT_THAT(augmented(set, 0, {0, 1, true}, 1), ElementsAre(0, 0, 0, 3, 2, 1, 0, 0, 0, 9, 8, 7));
}

TEST(Augment, DrawsByKeyAndNothingElse) {
  AugmentOptions options;
  const auto key = [&](std::int64_t epoch, std::int64_t sample) {
    const Augmentation drawn = draw_augmentation(options, epoch, sample);
    return std::make_tuple(drawn.top, drawn.left, drawn.is_flipped);
  };
  EXPECT_EQ(key(3, 5), key(3, 5));
  std::set<std::tuple<std::int64_t, std::int64_t, bool>> seen;
  std::map<bool, int> num_flipped;
  for (std::int64_t sample = 0; sample < 10000; ++sample) {
    seen.insert(key(0, sample));
    ++num_flipped[std::get<2>(key(0, sample))];
  }
  EXPECT_EQ(seen.size(), 9U * 9U * 2U);
  EXPECT_NEAR(num_flipped[true], 5000, 250);
  int num_same = 0;
  for (std::int64_t sample = 0; sample < 1000; ++sample) num_same += key(0, sample) == key(1, sample) ? 1 : 0;
  EXPECT_LT(num_same, 30);
  options.padding = 0;
  options.flip = false;
  for (std::int64_t sample = 0; sample < 100; ++sample) EXPECT_EQ(key(0, sample), std::make_tuple(0, 0, false));
}

}  // namespace
}  // namespace gpipe::data
