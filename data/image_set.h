// Labelled images as plain values, and the reader of Fashion-MNIST.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/split.h"

namespace gpipe::data {

// INVARIANT, of what the readers return: num >= 1, pixels.size() == num * channels * height * width,
// labels.size() == num, every label < num_classes.
struct ImageSet {
  std::int64_t num = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t num_classes = 0;
  std::vector<std::uint8_t> pixels;  // image, channel, row, column
  std::vector<std::uint8_t> labels;

  std::int64_t image_bytes() const { return channels * height * width; }
};

// Images and labels in two IDX files, plain or gzip. Throws DataError.
ImageSet read_idx_images(const std::string& images_path, const std::string& labels_path, std::int64_t num_classes);

// Fashion-MNIST: train-images-idx3-ubyte.gz and so on, 28 x 28 pixels, one channel, 10 classes. A file may have been
// unpacked. Throws DataError; InvalidArgument for kDev, which the set does not have.
ImageSet read_fashion_mnist(const std::string& dir, Split split);

}  // namespace gpipe::data
