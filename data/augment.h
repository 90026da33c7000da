// Augmentation of images: random crop with padding, random horizontal flip.
#pragma once

#include <cstdint>

#include "data/image_set.h"

namespace gpipe::data {

struct AugmentOptions {
  std::uint64_t seed = 0;
  std::int64_t padding = 4;  // black pixels added on every side before the crop back to the old size; 0: no crop
  bool flip = true;          // left and right swapped in half of the cases
};

// Where the crop begins in the padded image, and whether it is flipped after that.
struct Augmentation {
  std::int64_t top = 0;
  std::int64_t left = 0;
  bool is_flipped = false;
};

// A function of (seed, epoch, sample): of no thread, batch or replica. REQUIRES: padding >= 0.
Augmentation draw_augmentation(const AugmentOptions& options, std::int64_t epoch, std::int64_t sample);

// Writes the image_bytes() of the image `sample`, augmented, to `target`.
// REQUIRES: 0 <= top, left <= 2 * padding; `target` is no part of the set.
void augment_image(const ImageSet& set, std::int64_t sample, const Augmentation& augmentation, std::int64_t padding,
                   std::uint8_t* target);

}  // namespace gpipe::data
