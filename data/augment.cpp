#include "data/augment.h"

#include <algorithm>

#include "data/random.h"

namespace gpipe::data {

Augmentation draw_augmentation(const AugmentOptions& options, std::int64_t epoch, std::int64_t sample) {
  Random random({options.seed, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(sample)});
  const auto num_places = static_cast<std::uint64_t>(2 * options.padding + 1);
  Augmentation augmentation;
  augmentation.top = static_cast<std::int64_t>(random.below(num_places));
  augmentation.left = static_cast<std::int64_t>(random.below(num_places));
  augmentation.is_flipped = random.below(2) == 1 && options.flip;
  return augmentation;
}

void augment_image(const ImageSet& set, std::int64_t sample, const Augmentation& augmentation, std::int64_t padding,
                   std::uint8_t* target) {
  const std::int64_t down = augmentation.top - padding;
  const std::int64_t right = augmentation.left - padding;
  // The columns of the target that have a pixel of the source.
  const std::int64_t first = std::clamp<std::int64_t>(-right, 0, set.width);
  const std::int64_t end = std::clamp<std::int64_t>(set.width - right, first, set.width);
  const std::uint8_t* image = set.pixels.data() + sample * set.image_bytes();
  for (std::int64_t channel = 0; channel < set.channels; ++channel) {
    for (std::int64_t row = 0; row < set.height; ++row, target += set.width) {
      std::fill(target, target + set.width, std::uint8_t{0});
      const std::int64_t from = row + down;
      if (from < 0 || from >= set.height || first == end) continue;
      const std::uint8_t* source = image + (channel * set.height + from) * set.width;
      std::copy(source + (first + right), source + (end + right), target + first);
      if (augmentation.is_flipped) std::reverse(target, target + set.width);
    }
  }
}

}  // namespace gpipe::data
