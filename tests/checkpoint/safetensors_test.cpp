// What is saved comes back bit for bit; whatever is not a sound file is refused before anything is made of it.
#include "gpipe/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "gpipe/hash/content_hash.h"
#include "tests/model/same_bits.h"
#include "tests/os/fault_file_system.h"
#include "tests/os/temporary_folder.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  std::string write_with_header(const std::string& header, const std::string& data) const {
    std::string length(8, '\0');
    for (int index = 0; index < 8; ++index) length[index] = static_cast<char>(header.size() >> (8 * index));
    return write(length + header + data);
  }
  std::string bytes() const { return test::content_of(path_); }
  std::size_t num_files() const { return folder_.num_entries(); }

  const test::TemporaryFolder folder_;
  const std::string path_ = folder_.path("weights.safetensors");
};

Safetensors sample() {
  torch::manual_seed(1);
  Safetensors content;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar,
                          at::kByte, at::kBool, at::kComplexFloat}) {
    content.tensors.emplace_back(at::toString(type), torch::randint(0, 100, {3, 2}).to(type));
  }
  content.tensors.emplace_back("scalar", torch::scalar_tensor(std::nan("")));
  content.tensors.emplace_back("empty", torch::empty({0, 4}));
  content.tensors.emplace_back("transposed", torch::randn({4, 5}).t());
  content.metadata = {{"model", "mlp \"quoted\" \u00e9"}, {"step", "7"}};
  return content;
}

std::string hex(const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  const auto* bytes = static_cast<const unsigned char*>(contiguous.data_ptr());
  return fmt::format("{:02x}", fmt::join(bytes, bytes + contiguous.nbytes(), ""));
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
    EXPECT_TRUE(test::same_bits(found->second, tensor)) << name;
  }
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(SafetensorsTest, TheBytesAreThoseOfTheFormat) {
  save_safetensors(path_, {{{"b", torch::tensor({1, 2}, at::kByte)}, {"a", torch::tensor({3}, at::kByte)}}, {}});
  const std::string header =
      R"({"__metadata__":{"gpipe.data_xxh3":")" + content_hash_of("\x03\x01\x02") +
      R"("},"a":{"data_offsets":[0,1],"dtype":"U8","shape":[1]},"b":{"data_offsets":[1,3],"dtype":"U8","shape":[2]}})";
  const std::string file = bytes();
  ASSERT_GT(file.size(), 8u);
  EXPECT_EQ(static_cast<std::size_t>(static_cast<unsigned char>(file[0])), file.size() - 8 - 3);
  EXPECT_EQ(file.substr(8, header.size()), header);
  EXPECT_EQ(file.substr(file.size() - 3), std::string("\x03\x01\x02"));
}

TEST_F(SafetensorsTest, ReplacesAFileOnlyWhenTheNewOneIsWhole) {
  save_safetensors(path_, sample());
  const std::string before = bytes();
  EXPECT_THROW(save_safetensors(path_, {{{"z", torch::zeros({2}, at::kComplexDouble)}}, {}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path_, {{{"z", at::Tensor()}}, {}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path_, {{{"z", torch::ones(1)}, {"z", torch::ones(1)}}, {}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path_, {{{"__metadata__", torch::ones(1)}}, {}}), InvalidArgument);
  EXPECT_EQ(bytes(), before);
  EXPECT_THROW(save_safetensors(folder_.path("none/file"), sample()), CheckpointError);
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(SafetensorsTest, RefusesWhatIsNotASoundFile) {
  EXPECT_THAT([&] { load_safetensors(write("abc")); }, ThrowsMessage<CheckpointError>(HasSubstr("it has 3 bytes")));
  EXPECT_THAT([&] { load_safetensors(write("")); }, ThrowsMessage<CheckpointError>(HasSubstr("it has 0 bytes")));
  EXPECT_THAT([&] { load_safetensors(folder_.path("none")); },
              ThrowsMessage<CheckpointError>(HasSubstr("No such file")));
  EXPECT_THAT([&] { load_safetensors(folder_.path()); },
              ThrowsMessage<CheckpointError>(HasSubstr("is not a plain file")));
  if (TORCH_VERSION_MAJOR < 2) {
    EXPECT_THAT(
        [&] { load_safetensors(write_with_header(R"({"a":{"dtype":"U16","shape":[1],"data_offsets":[0,2]}})", "12")); },
        ThrowsMessage<CheckpointError>(HasSubstr("\"a\" is of type U16, which libtorch")));
  }
}

TEST_F(SafetensorsTest, WhoseDataDoNotHaveTheHashOfTheMetadataAreRefused) {
  save_safetensors(path_, sample());
  const std::string whole = bytes();
  for (const std::size_t from_end : {std::size_t{1}, std::size_t{100}}) {
    std::string damaged = whole;
    damaged[damaged.size() - from_end] ^= 1;
    EXPECT_THAT([&] { load_safetensors(write(damaged)); },
                ThrowsMessage<CheckpointError>(AllOf(HasSubstr(path_ + " is damaged"), HasSubstr("fetch it again"))));
  }
  // The hash is of this very file: it is not handed on, and what somebody gives as such does not count.
  EXPECT_EQ(load_safetensors(write(whole)).metadata, sample().metadata);
  Safetensors content = sample();
  content.metadata[kDataHashKey] = std::string(32, '0');
  save_safetensors(path_, content);
  EXPECT_EQ(bytes(), whole);
}

TEST_F(SafetensorsTest, OfOtherProgramsHaveNoHashAndLoad) {
  const std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const Safetensors content = load_safetensors(write_with_header(header, "x"));
  EXPECT_EQ(content.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(content.tensors.at(0).second.item<int>(), 'x');
}

TEST_F(SafetensorsTest, AreNotPutInThePlaceOfWhatIsNoPlainFile) {
  const std::string pipe = folder_.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("none", folder_.path("link"));
  for (const char* name : {"pipe", "link"}) {
    EXPECT_THAT([&] { save_safetensors(folder_.path(name), sample()); },
                ThrowsMessage<CheckpointError>(HasSubstr("is not a plain file")));
  }
  std::filesystem::create_symlink("none", folder_.path("model.safetensors.index.json"));
  EXPECT_THROW(save_safetensors_set(folder_.path(), sample(), 1000), CheckpointError);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("model.safetensors.index.json")));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(num_files(), 3u);
}

TEST_F(SafetensorsTest, TensorsCanBeChangedAndTheFileStaysAsItIs) {
  save_safetensors(path_, sample());
  const std::string before = bytes();
  Safetensors loaded = load_safetensors(path_);
  for (auto& item : loaded.tensors) item.second.fill_(1);
  EXPECT_EQ(bytes(), before);
  // A new file takes the old one's name; what was loaded stays.
  save_safetensors(path_, {{{"other", torch::zeros(1000)}}, {}});
  for (const auto& [name, tensor] : loaded.tensors) EXPECT_TRUE(tensor.eq(1).all().item<bool>()) << name;
}

TEST_F(SafetensorsTest, WhatIsWantedIsReadAndAllOfItHashed) {
  Safetensors content = sample();
  content.tensors.emplace_back("long", torch::randn({300, 1000}));
  content.tensors.emplace_back("longer", torch::randn({700, 1000}));
  save_safetensors(path_, content);
  const NamedTensors all = load_safetensors(path_).tensors;
  for (const std::string_view left_out : {"", "long", "longer", "Float"}) {
    for (const bool is_hashed : {true, false}) {
      ContentHash hash;
      const Safetensors read = read_safetensors(
          path_, [&](const std::string& name) { return name != left_out; }, is_hashed ? &hash : nullptr);
      if (is_hashed) {
        EXPECT_EQ(hash.finish(), content_hash_of(bytes()));
      }
      auto metadata = read.metadata;
      EXPECT_EQ(metadata.erase(kDataHashKey), 1U);
      EXPECT_EQ(metadata, content.metadata);
      ASSERT_EQ(read.tensors.size(), all.size() - (left_out.empty() ? 0 : 1));
      auto next = read.tensors.begin();
      for (const auto& [name, tensor] : all) {
        if (name == left_out) continue;
        EXPECT_EQ(next->first, name);
        EXPECT_EQ(hex(next->second), hex(tensor)) << name;
        ++next;
      }
    }
  }
}

TEST_F(SafetensorsTest, ElementsThatAreNotAlignedAreRead) {
  const std::string values("\1\0\0\200\77\0\0\0\100", 9);
  const Safetensors loaded =
      load_safetensors(write_with_header(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                         R"("b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})",
                                         values));
  EXPECT_TRUE(test::same_bits(loaded.tensors[1].second, torch::tensor({1.0F, 2.0F})));
}

TEST_F(SafetensorsTest, AFileIsTheOldOneOrTheNewOneWhateverCallFails) {
  const Safetensors old_content{{{"a", torch::full({300}, 1.0F)}}, {}};
  const Safetensors new_content{{{"a", torch::full({300}, 2.0F)}, {"b", torch::ones({7}, at::kByte)}}, {}};
  FaultFileSystem whole;
  save_safetensors(path_, new_content, whole);
  ASSERT_GE(whole.num_calls(), 7);
  for (const Fault fault : {Fault::kKill, Fault::kPowerLoss, Fault::kTornRename, Fault::kNoSpace, Fault::kIoError}) {
    for (int call = 0; call < whole.num_calls(); ++call) {
      std::filesystem::remove_all(folder_.path());
      std::filesystem::create_directories(folder_.path());
      save_safetensors(path_, old_content);
      FaultFileSystem files(fault, call);
      EXPECT_THROW(save_safetensors(path_, new_content, files), CheckpointError);
      files.reboot();
      const std::size_t count = load_safetensors(path_).tensors.size();
      // Who puts it in place has flushed it; what fails after that is the flush of the folder.
      const bool is_before = call < whole.num_calls() - 2;
      EXPECT_TRUE(!is_before || count == 1) << static_cast<int>(fault) << " at " << call;
      const bool is_alive = fault == Fault::kNoSpace || fault == Fault::kIoError;
      EXPECT_TRUE(!is_alive || num_files() == 1) << call;
    }
  }
  FaultFileSystem slow(Fault::kShortWrite);
  save_safetensors(path_, new_content, slow);
  EXPECT_EQ(load_safetensors(path_).tensors.size(), 2u);
}

TEST_F(SafetensorsTest, AModelInSeveralFilesComesBack) {
  const Safetensors saved = sample();
  save_safetensors_set(folder_.path(), saved, 60);
  EXPECT_GT(num_files(), 4u);
  const std::string index = folder_.path("model.safetensors.index.json");
  const Safetensors loaded = load_safetensors_set(index);
  save_safetensors(path_, saved);
  const Safetensors expected = load_safetensors(path_);
  EXPECT_EQ(loaded.metadata, expected.metadata);
  ASSERT_EQ(loaded.tensors.size(), expected.tensors.size());
  for (std::size_t place = 0; place < loaded.tensors.size(); ++place) {
    EXPECT_EQ(loaded.tensors[place].first, expected.tensors[place].first);
    EXPECT_EQ(hex(loaded.tensors[place].second), hex(expected.tensors[place].second));
  }

  std::string first;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    if (entry.path().filename().string().rfind("model-00001-of-", 0) == 0) first = entry.path();
  }
  ASSERT_FALSE(first.empty());
  save_safetensors(first, {{{"else", torch::ones(1)}}, {}});
  EXPECT_THAT([&] { load_safetensors_set(index); }, ThrowsMessage<CheckpointError>(HasSubstr("holds \"else\"")));
  save_safetensors(first, {});
  EXPECT_THAT([&] { load_safetensors_set(index); }, ThrowsMessage<CheckpointError>(HasSubstr("but it is not")));
  std::filesystem::remove(first);
  EXPECT_THAT([&] { load_safetensors_set(index); }, ThrowsMessage<CheckpointError>(HasSubstr("No such file")));
}

TEST_F(SafetensorsTest, AnIndependentReaderInPythonReadsAndWritesTheSame) {
  const Safetensors saved = sample();
  save_safetensors(path_, saved);
  const std::string json_path = folder_.path("tensors.json");
  const auto python = [&](const std::string& mode, const std::string& file, const std::string& redirection) {
    return std::system(fmt::format("python3 {}/independent_reader.py {} '{}' {} '{}'", GPIPE_TEST_DIR, mode, file,
                                   redirection, json_path)
                           .c_str());
  };
  ASSERT_EQ(python("read", path_, ">"), 0);
  const nlohmann::json read = nlohmann::json::parse(std::ifstream(json_path));
  ASSERT_EQ(read.size(), saved.tensors.size());
  for (const auto& [name, tensor] : saved.tensors) {
    EXPECT_EQ(read.at(name)[1], nlohmann::json(tensor.sizes().vec())) << name;
    EXPECT_EQ(read.at(name)[2], hex(tensor)) << name;
  }
  EXPECT_EQ(read.at("BFloat16")[0], "BF16");

  const std::string other = folder_.path("python.safetensors");
  ASSERT_EQ(python("write", other, "<"), 0);
  const Safetensors loaded = load_safetensors(other);
  const Safetensors expected = load_safetensors(path_);
  ASSERT_EQ(loaded.tensors.size(), expected.tensors.size());
  for (std::size_t place = 0; place < loaded.tensors.size(); ++place) {
    EXPECT_EQ(loaded.tensors[place].first, expected.tensors[place].first);
    EXPECT_EQ(loaded.tensors[place].second.scalar_type(), expected.tensors[place].second.scalar_type());
    EXPECT_EQ(loaded.tensors[place].second.sizes(), expected.tensors[place].second.sizes());
    EXPECT_EQ(hex(loaded.tensors[place].second), hex(expected.tensors[place].second));
  }
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
