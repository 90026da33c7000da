// A small data set of images that can be learned, in the files of Fashion-MNIST.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "run_command.h"
#include "tests/data/idx_bytes.h"

namespace gpipe::cli {

inline void write_images(const TemporaryFolder& folder, const std::string& prefix, std::uint32_t count) {
  std::mt19937 random(7);
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  for (std::uint32_t image = 0; image < count; ++image) {
    labels.push_back(static_cast<std::uint8_t>(image % 10));
    for (std::uint32_t place = 0; place < 28 * 28; ++place) {
      pixels.push_back(static_cast<std::uint8_t>(random() % 60 + (place / 28 / 2 == image % 10 ? 180 : 0)));
    }
  }
  folder.write(prefix + "-images-idx3-ubyte", data::idx_bytes({count, 28, 28}, pixels));
  folder.write(prefix + "-labels-idx1-ubyte", data::idx_bytes({count}, labels));
}

}  // namespace gpipe::cli
