// What is saved comes back bit for bit; whatever is not a sound file is refused before anything is made of it.
#include "gpipe/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() { std::filesystem::create_directories(folder_); }
  ~SafetensorsTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  std::string write_with_header(const std::string& header, const std::string& data) const {
    std::string length(8, '\0');
    for (int index = 0; index < 8; ++index) length[index] = static_cast<char>(header.size() >> (8 * index));
    return write(length + header + data);
  }
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  std::size_t num_files() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("gpipe_safetensors_" + std::to_string(getpid()));
  const std::string path_ = folder_ / "weights.safetensors";
};

Safetensors sample() {
  torch::manual_seed(1);
  Safetensors content;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar,
                          at::kByte, at::kBool}) {
    content.tensors.emplace_back(at::toString(type), torch::randint(0, 100, {3, 2}).to(type));
  }
  content.tensors.emplace_back("scalar", torch::scalar_tensor(std::nan("")));
  content.tensors.emplace_back("empty", torch::empty({0, 4}));
  content.tensors.emplace_back("transposed", torch::randn({4, 5}).t());
  content.metadata = {{"model", "mlp \"quoted\" \u00e9"}, {"step", "7"}};
  return content;
}

TEST_F(SafetensorsTest, WhatIsSavedComesBackBitForBit) {
  const Safetensors saved = sample();
  save_safetensors(path_, saved);
  const Safetensors loaded = load_safetensors(path_);
  EXPECT_EQ(loaded.metadata, saved.metadata);
  ASSERT_EQ(loaded.tensors.size(), saved.tensors.size());
  for (const auto& [name, tensor] : saved.tensors) {
    const auto found = std::find_if(loaded.tensors.begin(), loaded.tensors.end(),
                                    [name = name](const auto& item) { return item.first == name; });
    ASSERT_NE(found, loaded.tensors.end()) << name;
    EXPECT_EQ(found->second.scalar_type(), tensor.scalar_type());
    EXPECT_EQ(found->second.sizes(), tensor.sizes());
    const at::Tensor contiguous = tensor.contiguous();
    EXPECT_EQ(std::memcmp(found->second.data_ptr(), contiguous.data_ptr(), contiguous.nbytes()), 0) << name;
  }
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(SafetensorsTest, TheBytesAreThoseOfTheFormat) {
  save_safetensors(path_, {{{"b", torch::tensor({1, 2}, at::kByte)}, {"a", torch::tensor({3}, at::kByte)}}, {}});
  const std::string header =
      R"({"a":{"data_offsets":[0,1],"dtype":"U8","shape":[1]},"b":{"data_offsets":[1,3],"dtype":"U8","shape":[2]}})";
  const std::string file = bytes();
  ASSERT_GT(file.size(), 8u);
  EXPECT_EQ(static_cast<std::size_t>(static_cast<unsigned char>(file[0])), file.size() - 8 - 3);
  EXPECT_EQ(file.substr(8, header.size()), header);
  EXPECT_EQ(file.substr(file.size() - 3), std::string("\x03\x01\x02"));
}

TEST_F(SafetensorsTest, ReplacesAFileOnlyWhenTheNewOneIsWhole) {
  save_safetensors(path_, sample());
  const std::string before = bytes();
  EXPECT_THROW(save_safetensors(path_, {{{"z", torch::zeros({2}, at::kComplexFloat)}}, {}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path_, {{{"z", at::Tensor()}}, {}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path_, {{{"z", torch::ones(1)}, {"z", torch::ones(1)}}, {}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path_, {{{"__metadata__", torch::ones(1)}}, {}}), InvalidArgument);
  EXPECT_EQ(bytes(), before);
  EXPECT_THROW(save_safetensors(folder_ / "none" / "file", sample()), CheckpointError);
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(SafetensorsTest, RefusesWhatDoesNotFollowTheFormat) {
  const auto refuses = [&](const std::string& header, const std::string& data, const std::string& why) {
    EXPECT_THAT([&] { load_safetensors(write_with_header(header, data)); },
                ThrowsMessage<CheckpointError>(HasSubstr(why)))
        << header;
  };
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  refuses("[]", "", "no JSON object");
  refuses("{", "", "no JSON");
  refuses(R"({"a":3})", "", "needs dtype");
  refuses(one("\"F31\"", "[1]", "[0,4]"), "1234", "unknown dtype \"F31\"");
  refuses(one("3", "[1]", "[0,4]"), "1234", "no dtype");
  refuses(one("\"F32\"", "[-1]", "[0,4]"), "1234", "shape holds -1");
  refuses(one("\"F32\"", "[1.5]", "[0,4]"), "1234", "shape holds 1.5");
  refuses(one("\"F32\"", "[18446744073709551615]", "[0,4]"), "1234", "shape holds");
  refuses(one("\"F32\"", "[4611686018427387904,4]", "[0,0]"), "", "do not make the shape");
  refuses(one("\"F32\"", "[2]", "[0,4]"), "1234", "do not make the shape [2] of Float");
  refuses(one("\"F32\"", "[1]", "[4,0]"), "1234", "do not make the shape");
  refuses(one("\"F32\"", "[1]", "[4,8]"), "12345678", "begins at 4, not at 0");
  refuses(one("\"F32\"", "[1]", "[0,4]"), "12345678", "8 bytes of data, but its header speaks of 4");
  refuses(one("\"F32\"", "[1]", "[0,4]"), "12", "cut short");
  refuses(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      "1", "\"a\" occurs twice");
  refuses(R"({"__metadata__":{"a":1}})", "", "is no text");
  EXPECT_THAT([&] { load_safetensors(write("abc")); }, ThrowsMessage<CheckpointError>(HasSubstr("it has 3 bytes")));
  EXPECT_THAT([&] { load_safetensors(write(std::string(8, '\xff') + "{}")); },
              ThrowsMessage<CheckpointError>(HasSubstr("its header would have")));
  EXPECT_THAT([&] { load_safetensors(folder_ / "none"); }, ThrowsMessage<CheckpointError>(HasSubstr("No such file")));
  EXPECT_THAT([&] { load_safetensors(folder_); }, ThrowsMessage<CheckpointError>(HasSubstr("is not a file")));
}

TEST_F(SafetensorsTest, EveryDamagedFileIsLoadedOrRefused) {
  save_safetensors(path_, sample());
  const std::string sound = bytes();
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string damaged = sound;
    const std::size_t header_end = 1200;
    for (int edit = static_cast<int>(random() % 3); edit >= 0; --edit) {
      const std::size_t at = random() % std::min(damaged.size(), header_end);
      if (random() % 4 == 0) {
        damaged.erase(at, 1 + random() % 20);
      } else {
        damaged[at] = static_cast<char>(random());
      }
    }
    try {
      load_safetensors(write(damaged));
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 600);
}

}  // namespace
}  // namespace gpipe
