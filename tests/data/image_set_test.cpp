// Fashion-MNIST and CIFAR-10 in miniature: the same files with fewer images.
#include "data/image_set.h"

#include <gmock/gmock.h>
#include <png.h>

#include "data/cifar10.h"
#include "tests/data/files.h"
#include "tests/data/idx_bytes.h"

namespace gpipe::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::vector<std::uint8_t> random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

constexpr std::size_t kFashionBytes = 28 * 28;

void write_fashion(const TemporaryFolder& folder, const std::string& images, const std::string& labels) {
  folder.write("t10k-images-idx3-ubyte.gz", gzipped(images));
  folder.write("t10k-labels-idx1-ubyte.gz", gzipped(labels));
}

std::string fashion_refusal(const std::string& images, const std::string& labels) {
  const TemporaryFolder folder;
  write_fashion(folder, images, labels);
  return refusal([&] { read_fashion_mnist(folder.path(), Split::kTest); });
}

TEST(FashionMnist, HasItsImagesAndLabels) {
  const TemporaryFolder folder;
  const std::vector<std::uint8_t> pixels = random_bytes(3 * kFashionBytes, 1);
  write_fashion(folder, idx_bytes({3, 28, 28}, pixels), idx_bytes({3}, {0, 9, 4}));
  const ImageSet set = read_fashion_mnist(folder.path(), Split::kTest);
  EXPECT_EQ(set.num, 3);
  EXPECT_EQ(set.channels, 1);
  EXPECT_EQ(set.height, 28);
  EXPECT_EQ(set.width, 28);
  EXPECT_EQ(set.num_classes, 10);
  EXPECT_EQ(set.pixels, pixels);
  EXPECT_THAT(set.labels, ElementsAre(0, 9, 4));
}

TEST(FashionMnist, MayBeUnpacked) {
  const TemporaryFolder folder;
  folder.write("train-images-idx3-ubyte", idx_bytes({1, 28, 28}, random_bytes(kFashionBytes, 1)));
  folder.write("train-labels-idx1-ubyte", idx_bytes({1}, {2}));
  EXPECT_EQ(read_fashion_mnist(folder.path(), Split::kTrain).num, 1);
}

TEST(FashionMnist, SaysHowToGetWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { read_fashion_mnist(folder.path(), Split::kTrain); }),
              AllOf(HasSubstr("no file train-images-idx3-ubyte.gz"), EndsWith("run gpipe get-data fashion-mnist")));
  EXPECT_THROW(read_fashion_mnist(folder.path(), Split::kDev), InvalidArgument);
}

TEST(FashionMnist, RefusesLabelsOutOfRange) {
  EXPECT_THAT(fashion_refusal(idx_bytes({2, 28, 28}, random_bytes(2 * kFashionBytes, 1)), idx_bytes({2}, {9, 10})),
              AllOf(HasSubstr("t10k-labels-idx1-ubyte.gz"), HasSubstr("label 10 of image 1 is out of range"),
                    EndsWith("expected 0 to 9; run gpipe get-data fashion-mnist")));
}

TEST(FashionMnist, RefusesAnotherNumberOfLabels) {
  EXPECT_THAT(fashion_refusal(idx_bytes({2, 28, 28}, random_bytes(2 * kFashionBytes, 1)), idx_bytes({3}, {1, 2, 3})),
              HasSubstr("3 labels for the 2 images of "));
}

TEST(FashionMnist, RefusesImagesOfAnotherSize) {
  EXPECT_THAT(fashion_refusal(idx_bytes({1, 2, 3}, random_bytes(6, 1)), idx_bytes({1}, {1})),
              HasSubstr("images of 2 x 3 pixels, expected 28 x 28"));
  EXPECT_THAT(fashion_refusal(idx_bytes({0x80000000, 28, 28}, {}), idx_bytes({1}, {1})), HasSubstr("2147483648"));
}

TEST(FashionMnist, RefusesSwappedFiles) {
  EXPECT_THAT(fashion_refusal(idx_bytes({1}, {1}), idx_bytes({1}, {1})), HasSubstr("wrong magic number"));
}

constexpr std::int64_t kBatch = 4;
constexpr std::size_t kCifarBytes = 3 * 32 * 32;

// The pixels of image `image` of a batch: channel, row, column.
std::vector<std::uint8_t> cifar_pixels(unsigned batch, std::int64_t image) {
  return random_bytes(kCifarBytes, batch * 100 + static_cast<unsigned>(image));
}

int cifar_label(unsigned batch, std::int64_t image) { return static_cast<int>((batch * 3 + image) % 10); }

std::string binary_batch(unsigned batch) {
  std::string bytes;
  for (std::int64_t image = 0; image < kBatch; ++image) {
    bytes += static_cast<char>(cifar_label(batch, image));
    const std::vector<std::uint8_t> pixels = cifar_pixels(batch, image);
    bytes.append(pixels.begin(), pixels.end());
  }
  return bytes;
}

std::string png_bytes(unsigned format, int width, int height, const std::vector<std::uint8_t>& rows) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.format = format;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  png_alloc_size_t size = 0;
  EXPECT_NE(png_image_write_to_memory(&image, nullptr, &size, 0, rows.data(), 0, nullptr), 0);
  std::string bytes(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&image, bytes.data(), &size, 0, rows.data(), 0, nullptr), 0);
  bytes.resize(size);
  return bytes;
}

std::string png_batch(unsigned batch) {
  std::vector<std::uint8_t> rows;
  for (std::int64_t image = 0; image < kBatch; ++image) {
    const std::vector<std::uint8_t> pixels = cifar_pixels(batch, image);
    for (std::size_t pixel = 0; pixel < 1024; ++pixel) {
      for (std::size_t channel = 0; channel < 3; ++channel) rows.push_back(pixels[channel * 1024 + pixel]);
    }
  }
  return png_bytes(PNG_FORMAT_RGB, 1024, kBatch, rows);
}

std::string name_of(unsigned batch) { return batch == 0 ? "test_batch" : "data_batch_" + std::to_string(batch); }

std::string json_labels(unsigned first_batch, unsigned last_batch) {
  std::string json;
  for (unsigned batch = first_batch; batch <= last_batch; ++batch) {
    for (std::int64_t image = 0; image < kBatch; ++image) {
      json += (json.empty() ? "[" : ",") + std::to_string(cifar_label(batch, image));
    }
  }
  return json + "]";
}

void write_cifar(const TemporaryFolder& folder, bool is_png) {
  for (unsigned batch = 0; batch <= 5; ++batch) {
    folder.write(name_of(batch) + (is_png ? ".png" : ".bin"), is_png ? png_batch(batch) : binary_batch(batch));
  }
  if (!is_png) return;
  folder.write("test_lables.json", json_labels(0, 0));
  folder.write("train_lables.json", json_labels(1, 5));
}

TEST(Cifar10, IsTheSameInBothPackagings) {
  const TemporaryFolder binary;
  const TemporaryFolder png;
  write_cifar(binary, false);
  write_cifar(png, true);
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const ImageSet a = read_cifar10_binary(binary.path(), split, kBatch);
    const ImageSet b = read_cifar10_png(png.path(), split, kBatch);
    const unsigned first_batch = split == Split::kTrain ? 1 : 0;
    EXPECT_EQ(a.num, split == Split::kTrain ? 5 * kBatch : kBatch);
    EXPECT_EQ(a.num, b.num);
    EXPECT_EQ(a.pixels, b.pixels);
    EXPECT_EQ(a.labels, b.labels);
    EXPECT_EQ(a.image_bytes(), static_cast<std::int64_t>(kCifarBytes));
    const std::vector<std::uint8_t> second(a.pixels.begin() + kCifarBytes, a.pixels.begin() + 2 * kCifarBytes);
    EXPECT_EQ(second, cifar_pixels(first_batch, 1));
    EXPECT_EQ(a.labels[1], cifar_label(first_batch, 1));
  }
  EXPECT_THROW(read_cifar10_png(png.path(), Split::kDev), InvalidArgument);
}

TEST(Cifar10, RefusesBinaryBatchesThatAreNotWhole) {
  const TemporaryFolder folder;
  const auto binary_refusal = [&](const std::string& bytes) {
    folder.write("test_batch.bin", bytes);
    return refusal([&] { read_cifar10_binary(folder.path(), Split::kTest, kBatch); });
  };
  const std::string bytes = binary_batch(0);
  EXPECT_EQ(binary_refusal(bytes), "not refused");
  EXPECT_THAT(binary_refusal(bytes.substr(1)), HasSubstr("12291 bytes, expected 4 images of 3073 bytes"));
  EXPECT_THAT(binary_refusal(bytes.substr(3073)), HasSubstr("expected 4 images"));
  std::string wrong = bytes;
  wrong[3073] = 10;
  EXPECT_THAT(binary_refusal(wrong), HasSubstr("label 10 of image 1 is out of range"));
  wrong[3073] = static_cast<char>(0xff);
  EXPECT_THAT(binary_refusal(wrong), HasSubstr("label 255 of image 1"));
  EXPECT_THAT(refusal([&] { read_cifar10_binary(folder.path(), Split::kTrain, kBatch); }),
              AllOf(HasSubstr("no file data_batch_1.bin"),
                    EndsWith("; copy it again from cifar-10-binary.tar.gz, or delete the .bin files and run "
                             "gpipe get-data cifar10")));
}

TEST(Cifar10, RefusesPngsThatAreDamagedOrOfAnotherKind) {
  const TemporaryFolder folder;
  folder.write("test_lables.json", json_labels(0, 0));
  const auto png_refusal = [&](const std::string& bytes) {
    folder.write("test_batch.png", bytes);
    return refusal([&] { read_cifar10_png(folder.path(), Split::kTest, kBatch); });
  };
  const std::string bytes = png_batch(0);
  EXPECT_EQ(png_refusal(bytes), "not refused");
  EXPECT_THAT(png_refusal(bytes.substr(0, bytes.size() / 2)), HasSubstr("damaged PNG"));
  EXPECT_THAT(png_refusal("no PNG"), AllOf(HasSubstr("damaged PNG"), EndsWith("; run gpipe get-data cifar10")));
  EXPECT_THAT(png_refusal(""), AllOf(HasSubstr("empty"), EndsWith("; run gpipe get-data cifar10")));
  std::string flipped = bytes;
  flipped[bytes.size() / 2] = static_cast<char>(flipped[bytes.size() / 2] ^ 1);
  EXPECT_THAT(png_refusal(flipped), HasSubstr("damaged PNG"));
  EXPECT_THAT(png_refusal(png_bytes(PNG_FORMAT_RGB, 32, 32, random_bytes(kCifarBytes, 1))),
              HasSubstr("a PNG of 32 x 32 pixels, expected 1024 x 4"));
  EXPECT_THAT(png_refusal(png_bytes(PNG_FORMAT_GRAY, 1024, kBatch, random_bytes(4096, 1))), HasSubstr("not plain RGB"));
  EXPECT_THAT(png_refusal(png_bytes(PNG_FORMAT_RGBA, 1024, kBatch, random_bytes(16384, 1))),
              HasSubstr("not plain RGB"));
}

TEST(Cifar10, RefusesHostilePngsWithoutMuchMemory) {
  const TemporaryFolder folder;
  std::string bytes = png_batch(0);
  bytes.replace(16, 8, "\x7f\xff\xff\xff\x7f\xff\xff\xff");  // the size in the header
  folder.write("test_batch.png", bytes);
  EXPECT_THAT(refusal([&] { read_cifar10_png(folder.path(), Split::kTest, kBatch); }), HasSubstr("PNG"));
}

TEST(Cifar10, RefusesLabelsThatAreNone) {
  const TemporaryFolder folder;
  folder.write("test_batch.png", png_batch(0));
  const auto label_refusal = [&](const std::string& json) {
    folder.write("test_lables.json", json);
    return refusal([&] { read_cifar10_png(folder.path(), Split::kTest, kBatch); });
  };
  EXPECT_EQ(label_refusal("[1,2,3,9]"), "not refused");
  EXPECT_THAT(label_refusal("[1,2,3,10]"), HasSubstr("label 10 of image 3 is out of range"));
  EXPECT_THAT(label_refusal("[1,-1,3,4]"), HasSubstr("label -1 of image 1"));
  EXPECT_THAT(label_refusal("[1,18446744073709551615,3,4]"), HasSubstr("of image 1 is out of range"));
  EXPECT_THAT(label_refusal("[1,2.0,3,4]"), HasSubstr("the label of image 1 is not a whole number"));
  EXPECT_THAT(label_refusal("[1,2,3]"), HasSubstr("3 labels for 4 images"));
  EXPECT_THAT(label_refusal("[1,2,3,"), HasSubstr("broken JSON at byte"));
  EXPECT_THAT(label_refusal("{}"), HasSubstr("expected an array of 4 labels"));
  EXPECT_THAT(label_refusal(std::string(1000000, '[')), HasSubstr("broken JSON"));
}

}  // namespace
}  // namespace gpipe::data
