#include "data/image_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "data/data_dir.h"
#include "data/data_error.h"
#include "data/idx.h"
#include "gpipe/error.h"

namespace gpipe::data {
namespace {

constexpr const char* kGetFashion = "run gpipe get-data fashion-mnist";

std::string fashion_mnist_file(const std::string& dir, const std::string& name) {
  std::error_code ignored;
  const bool is_unpacked = std::filesystem::exists(std::filesystem::path(dir) / name, ignored) &&
                           !std::filesystem::exists(std::filesystem::path(dir) / (name + ".gz"), ignored);
  return file_in(dir, is_unpacked ? name : name + ".gz", kGetFashion);
}

}  // namespace

ImageSet read_idx_images(const std::string& images_path, const std::string& labels_path, std::int64_t num_classes) {
  IdxArray images = read_idx(images_path, 3);
  IdxArray labels = read_idx(labels_path, 1);
  if (images.dims[0] != labels.dims[0]) {
    throw DataError(labels_path,
                    fmt::format("{} labels for the {} images of {}", labels.dims[0], images.dims[0], images_path),
                    kFetchAgain);
  }
  const auto wrong = std::find_if(labels.values.begin(), labels.values.end(),
                                  [&](std::uint8_t label) { return label >= num_classes; });
  if (wrong != labels.values.end()) {
    throw DataError(labels_path,
                    fmt::format("label {} of image {} is out of range; expected 0 to {}", *wrong,
                                wrong - labels.values.begin(), num_classes - 1),
                    kFetchAgain);
  }
  ImageSet set;
  set.num = images.dims[0];
  set.channels = 1;
  set.height = images.dims[1];
  set.width = images.dims[2];
  set.num_classes = num_classes;
  set.pixels = std::move(images.values);
  set.labels = std::move(labels.values);
  return set;
}

ImageSet read_fashion_mnist(const std::string& dir, Split split) {
  if (split == Split::kDev) throw InvalidArgument("Fashion-MNIST has no dev split; use train or test");
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  const std::string images_path = fashion_mnist_file(dir, prefix + "-images-idx3-ubyte");
  const std::string labels_path = fashion_mnist_file(dir, prefix + "-labels-idx1-ubyte");
  ImageSet set = read_with_remedy(kGetFashion, [&] { return read_idx_images(images_path, labels_path, 10); });
  if (set.height != 28 || set.width != 28) {
    throw DataError(images_path, fmt::format("images of {} x {} pixels, expected 28 x 28", set.height, set.width),
                    kGetFashion);
  }
  return set;
}

}  // namespace gpipe::data
