#include "data/cifar10.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "data/data_dir.h"
#include "data/data_error.h"
#include "data/gzip.h"
#include "gpipe/error.h"
#include "gpipe/text/json.h"

namespace gpipe::data {
namespace {

using detail::json_document;
using detail::JsonProblem;

constexpr std::int64_t kNumClasses = 10;
constexpr std::int64_t kSide = 32;
constexpr std::int64_t kPlane = kSide * kSide;
constexpr std::int64_t kImageBytes = 3 * kPlane;
constexpr const char* kGetPng = "run gpipe get-data cifar10";
// Where official batches are, gpipe get-data leaves them alone.
constexpr const char* kGetBinary =
    "copy it again from cifar-10-binary.tar.gz, or delete the .bin files and run gpipe get-data cifar10";

// The names of a split's files, without their extension.
std::vector<std::string> batch_names(Split split) {
  if (split == Split::kDev) throw InvalidArgument("CIFAR-10 has no dev split; use train or test");
  if (split == Split::kTest) return {"test_batch"};
  return {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"};
}

ImageSet empty_set(std::size_t num_batches, std::int64_t batch_size) {
  ImageSet set;
  set.channels = 3;
  set.height = kSide;
  set.width = kSide;
  set.num_classes = kNumClasses;
  const auto num = static_cast<std::size_t>(batch_size) * num_batches;
  set.pixels.reserve(num * kImageBytes);
  set.labels.reserve(num);
  return set;
}

std::uint8_t checked_label(std::int64_t label, std::int64_t image, const std::string& file) {
  if (label < 0 || label >= kNumClasses) {
    throw DataError(file, fmt::format("label {} of image {} is out of range; expected 0 to 9", label, image),
                    kFetchAgain);
  }
  return static_cast<std::uint8_t>(label);
}

void append_binary_batch(const std::string& path, std::int64_t batch_size, ImageSet& set) {
  constexpr std::int64_t kRecordBytes = 1 + kImageBytes;
  const std::string bytes = read_bytes(path);
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size != batch_size * kRecordBytes) {
    throw DataError(path, fmt::format("{} bytes, expected {} images of {} bytes", size, batch_size, kRecordBytes),
                    kFetchAgain);
  }
  for (std::int64_t image = 0; image < batch_size; ++image) {
    const auto record = bytes.begin() + image * kRecordBytes;
    set.labels.push_back(checked_label(static_cast<std::uint8_t>(*record), image, path));
    set.pixels.insert(set.pixels.end(), record + 1, record + kRecordBytes);
  }
  set.num += batch_size;
}

// The rows of an RGB image of a known size, three bytes a pixel. libpng's simplified interface: it has no long jumps.
std::vector<std::uint8_t> read_png(const std::string& path, std::int64_t height, std::int64_t width) {
  const std::string bytes = read_bytes(path);
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_imagep)> freed(&image, png_image_free);
  const auto check = [&](int succeeded) {
    if (succeeded != 0 && image.warning_or_error == 0) return;
    throw DataError(path, fmt::format("damaged PNG: {}", image.message), kFetchAgain);
  };
  check(png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()));
  if (image.height != height || image.width != width) {
    throw DataError(path,
                    fmt::format("a PNG of {} x {} pixels, expected {} x {}", image.width, image.height, width, height),
                    kFetchAgain);
  }
  // Anything else would be converted, and its bits would not be those of the data set.
  if (image.format != PNG_FORMAT_RGB || (image.flags & PNG_IMAGE_FLAG_COLORSPACE_NOT_sRGB) != 0) {
    throw DataError(path, "a PNG that is not plain RGB with 8 bits a channel", kFetchAgain);
  }
  std::vector<std::uint8_t> rows(PNG_IMAGE_SIZE(image));
  check(png_image_finish_read(&image, nullptr, rows.data(), 0, nullptr));
  return rows;
}

void append_png_batch(const std::string& path, std::int64_t batch_size, ImageSet& set) {
  const std::vector<std::uint8_t> rows = read_png(path, batch_size, kPlane);
  auto target = static_cast<std::size_t>(set.num * kImageBytes);
  set.pixels.resize(target + rows.size());
  for (std::int64_t image = 0; image < batch_size; ++image) {
    for (std::int64_t channel = 0; channel < 3; ++channel) {
      const std::uint8_t* source = rows.data() + image * kImageBytes + channel;
      for (std::int64_t pixel = 0; pixel < kPlane; ++pixel) set.pixels[target++] = source[3 * pixel];
    }
  }
  set.num += batch_size;
}

void read_labels(const std::string& path, ImageSet& set) {
  nlohmann::json labels;
  try {
    labels = json_document(read_bytes(path));
  } catch (const JsonProblem& problem) {
    throw DataError(path, fmt::format("broken JSON at byte {}", problem.byte), kFetchAgain);
  }
  if (!labels.is_array() || static_cast<std::int64_t>(labels.size()) != set.num) {
    throw DataError(path,
                    labels.is_array() ? fmt::format("{} labels for {} images", labels.size(), set.num)
                                      : fmt::format("expected an array of {} labels", set.num),
                    kFetchAgain);
  }
  for (std::int64_t image = 0; image < set.num; ++image) {
    const nlohmann::json& label = labels[static_cast<std::size_t>(image)];
    if (!label.is_number_integer()) {
      throw DataError(path, fmt::format("the label of image {} is not a whole number", image), kFetchAgain);
    }
    // Unsigned numbers above the range of the signed come out negative, and are refused, too.
    set.labels.push_back(checked_label(label.get<std::int64_t>(), image, path));
  }
}

}  // namespace

ImageSet read_cifar10_binary(const std::string& dir, Split split, std::int64_t batch_size) {
  const std::vector<std::string> names = batch_names(split);
  ImageSet set = empty_set(names.size(), batch_size);
  return read_with_remedy(kGetBinary, [&] {
    for (const std::string& name : names)
      append_binary_batch(file_in(dir, name + ".bin", kFetchAgain), batch_size, set);
    return std::move(set);
  });
}

ImageSet read_cifar10_png(const std::string& dir, Split split, std::int64_t batch_size) {
  const std::vector<std::string> names = batch_names(split);
  ImageSet set = empty_set(names.size(), batch_size);
  return read_with_remedy(kGetPng, [&] {
    for (const std::string& name : names) append_png_batch(file_in(dir, name + ".png", kFetchAgain), batch_size, set);
    read_labels(file_in(dir, split == Split::kTest ? "test_lables.json" : "train_lables.json", kFetchAgain), set);
    return std::move(set);
  });
}

ImageSet read_cifar10(const std::string& dir, Split split) {
  std::error_code ignored;
  const bool is_binary = std::filesystem::exists(std::filesystem::path(dir) / "test_batch.bin", ignored);
  return is_binary ? read_cifar10_binary(dir, split) : read_cifar10_png(dir, split);
}

}  // namespace gpipe::data
