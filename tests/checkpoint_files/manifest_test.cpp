// A manifest comes back as it was; anything else is refused; a folder of checkpoints is read the same whatever lies in
// it.
#include "gpipe/checkpoint_files/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

#include "gpipe/checkpoint_files/checkpoint_folder.h"
#include "gpipe/checkpoint_files/manifest_seal.h"
#include "gpipe/checkpoint_files/new_checkpoint.h"
#include "tests/checkpoint_files/largest_allocation.h"
#include "tests/os/temporary_folder.h"

namespace gpipe {
namespace {

using detail::begin_checkpoint;
using detail::commit_checkpoint;
using detail::remove_old_checkpoints;
using detail::seal_manifest;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

Manifest sample() {
  Manifest manifest;
  manifest.step = 100;
  manifest.pipeline_step = 101;
  manifest.seed = std::numeric_limits<std::uint64_t>::max();
  manifest.data_position = R"({"epoch": 1, "batch": 2})";
  manifest.learning_rate = "cosine";
  manifest.notes = {{"who", "\u00e9 \"quoted\""}};
  manifest.layout = {1, 2, 8, "1f1b", 0, {3, 4}, {"never", "always"}, {}};
  manifest.gpipe_version = library_version();
  manifest.libtorch_version = "1.13.1";
  manifest.optimizer = "Adam";
  manifest.groups = {{{{"lr", 0.1}, {"eps", 1e-300}}, {"0.weight", "0.bias"}}, {{{"lr", 1.0 / 3}}, {"1.weight"}}};
  manifest.files = {{"model-00001-of-00001.safetensors", 12, std::string(32, 'a')}, {"b", 0, std::string(32, '0')}};
  return manifest;
}

// Without its checksum.
std::string body_of(const std::string& json) { return json.substr(0, json.rfind(",\n  \"crc32\"")) + "\n}\n"; }

TEST(Manifest, ComesBackAsItWas) {
  const std::string json = to_json(sample());
  const Manifest read = parse_manifest(json, "manifest.json");
  EXPECT_EQ(to_json(read), json);
  EXPECT_EQ(read.seed, sample().seed);
  EXPECT_EQ(read.groups[1].options.at("lr"), 1.0 / 3);
  EXPECT_EQ(read.layout.layers_per_stage, (std::vector<int>{3, 4}));
  EXPECT_NE(std::string(library_version()), "");
}

TEST(Manifest, OfAnOptionThatIsNotFiniteIsNotWritten) {
  Manifest manifest = sample();
  manifest.groups[0].options["lr"] = std::numeric_limits<double>::infinity();
  EXPECT_THROW(to_json(manifest), InvalidArgument);
}

TEST(Manifest, RefusesWhatIsNone) {
  const std::string sound = to_json(sample());
  const auto refuses = [&](const std::string& from, const std::string& to, const std::string& why) {
    std::string json = sound;
    const std::size_t at = json.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    json.replace(at, from.size(), to);
    EXPECT_THAT([&] { parse_manifest(seal_manifest(body_of(json)), "manifest.json"); },
                ThrowsMessage<CheckpointError>(HasSubstr(why)))
        << to;
    EXPECT_THROW(parse_manifest(json, "manifest.json"), CheckpointError);
  };
  refuses("gpipe checkpoint", "zip", "its format is not");
  refuses("\"version\": 1", "\"version\": 2", "it is of version 2, and this gpipe reads version 1");
  refuses("\"step\": 100", "\"step\": -1", "\"step\" is no whole number");
  refuses("\"step\": 100", "\"step\": 1e2", "\"step\" is no whole number");
  refuses("\"step\": 100", "\"step\": 100, \"step\": 100", "\"step\" occurs twice");
  refuses("\"seed\": 18446744073709551615", "\"seed\": 18446744073709551616", "\"seed\" is no whole number");
  refuses("\"data_position\"", "\"position\"", "it has no \"data_position\"");
  refuses("\"model-00001-of-00001.safetensors\"", "\"../x\"", "is no name for it");
  refuses("\"model-00001-of-00001.safetensors\"", "\"b\"", "is no name for it");
  refuses("\"model-00001-of-00001.safetensors\"", "\"manifest.json\"", "is no name for it");
  refuses("\"bytes\": 12", "\"bytes\": \"12\"", "\"bytes\" is no whole number");
  refuses("aaaa", "aaaA", "32 hexadecimal digits");
  refuses("aaaa", "aaa", "32 hexadecimal digits");
  refuses("\"0.bias\"", "\"0.weight\"", "is there twice");
  refuses("\"lr\": 0.1", "\"lr\": null", "is no number");
  refuses("\"1f1b\"", "1", "\"schedule\" is no text");
  refuses("\"Adam\"", "\"\xff\"", "not UTF-8");
  EXPECT_THROW(parse_manifest("", "m"), CheckpointError);
  EXPECT_THROW(parse_manifest("[]", "m"), CheckpointError);
  EXPECT_THROW(parse_manifest(sound.substr(0, sound.size() / 2), "m"), CheckpointError);
  EXPECT_THROW(parse_manifest(sound + sound, "m"), CheckpointError);
  EXPECT_THROW(parse_manifest(std::string(100'000, '['), "m"), CheckpointError);
}

TEST(Manifest, WithAnyByteChangedIsRefused) {
  const std::string sound = to_json(sample());
  for (std::size_t at = 0; at < sound.size(); ++at) {
    for (const char bit : {1, 4, 32}) {
      std::string damaged = sound;
      damaged[at] = static_cast<char>(damaged[at] ^ bit);
      EXPECT_THROW(parse_manifest(damaged, "manifest.json"), CheckpointError) << at;
    }
  }
  EXPECT_EQ(seal_manifest("{\n}\n"), "{,\n  \"crc32\": \"15d54739\"\n}\n");  // zlib.crc32(b"{")
}

TEST(Manifest, EveryMutatedOneIsReadOrRefused) {
  const std::string sound = body_of(to_json(sample()));
  const std::vector<std::string> tokens = {"{",
                                           "}",
                                           "[",
                                           "]",
                                           "null",
                                           "true",
                                           "-1",
                                           "1e999",
                                           "\"",
                                           "\\u0000",
                                           ",",
                                           ":",
                                           "{}",
                                           "\xff",
                                           "\"\"",
                                           "0",
                                           "1e-5",
                                           "\"b\"",
                                           "99999999999999999999"};
  const char* said = std::getenv("GPIPE_FUZZ_FILES");
  const int count = said == nullptr ? 20'000 : std::atoi(said);
  std::mt19937 random(3);
  int accepted = 0;
  for (int round = 0; round < count; ++round) {
    std::string json = sound;
    for (int edit = static_cast<int>(random() % 3); edit >= 0; --edit) {
      const std::size_t at = random() % json.size();
      switch (random() % 4) {
        case 0:
          json.erase(at, random() % 30);
          break;
        case 1:
          json.insert(at, tokens[random() % tokens.size()]);
          break;
        case 2:
          json.insert(at, json.substr(random() % json.size(), random() % 200));
          break;
        default:
          json[at] = static_cast<char>(random());
      }
      if (json.empty()) json = "{";
    }
    json = seal_manifest(json);
    reset_largest_allocation();
    try {
      const Manifest read = parse_manifest(json, "manifest.json");
      EXPECT_EQ(to_json(parse_manifest(to_json(read), "again")), to_json(read));
      ++accepted;
    } catch (const CheckpointError&) {
      ASSERT_LE(largest_allocation(), 8 * json.size() + 4096);
    }
  }
  EXPECT_GT(accepted, count / 1000);
  EXPECT_LT(accepted, count);
}

class CheckpointFolder : public ::testing::Test {
 protected:
  std::string add(std::int64_t step) {
    Manifest manifest;
    manifest.step = step;
    const std::string temporary = begin_checkpoint(real_file_system(), folder_, step);
    return commit_checkpoint(real_file_system(), temporary, manifest);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const std::string& path : list_checkpoints(folder_)) names.push_back(path.substr(folder_.size() + 1));
    return names;
  }

  const test::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path("checkpoints");  // not there at the beginning
};

TEST_F(CheckpointFolder, LatestIsWhatWasSavedLast) {
  EXPECT_EQ(latest_checkpoint(folder_), "");
  EXPECT_THROW(resolve_checkpoint(folder_), CheckpointError);
  add(5);
  EXPECT_EQ(latest_checkpoint(folder_ + "/"), folder_ + "/step-0000000005");
  add(20'000'000'000);
  add(7);  // a training that was begun again
  EXPECT_EQ(latest_checkpoint(folder_), folder_ + "/step-0000000007");
  EXPECT_EQ(resolve_checkpoint(folder_), folder_ + "/step-0000000007");
  EXPECT_EQ(resolve_checkpoint(folder_ + "/step-0000000005/"), folder_ + "/step-0000000005");
  EXPECT_THAT(names(), ElementsAre("step-0000000005", "step-0000000007", "step-20000000000"));
}

TEST_F(CheckpointFolder, WhatIsDamagedIsPassedOver) {
  add(1);
  add(2);
  add(3);
  std::ofstream(folder_ + "/step-0000000003/manifest.json") << "{";
  EXPECT_EQ(latest_checkpoint(folder_), folder_ + "/step-0000000002");
  for (const char* text : {"", "../..", "step-0000000001x", "step-0000000009", "/etc"}) {
    std::ofstream(folder_ + "/latest") << text;
    EXPECT_EQ(latest_checkpoint(folder_), folder_ + "/step-0000000002") << text;
  }
  std::filesystem::create_directories(folder_ + "/step-0000000004.tmp");
  std::filesystem::create_directories(folder_ + "/step-5");
  std::ofstream(folder_ + "/notes.txt") << "mine";
  EXPECT_THAT(names(), ElementsAre("step-0000000001", "step-0000000002"));
  add(6);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/step-0000000004.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/notes.txt"));
}

TEST_F(CheckpointFolder, WhoseLatestIsNoSmallFileHasALatestAllTheSame) {
  add(1);
  add(2);
  const std::string latest = folder_ + "/latest";
  std::filesystem::remove(latest);
  std::filesystem::create_symlink("/dev/zero", latest);
  EXPECT_EQ(latest_checkpoint(folder_), folder_ + "/step-0000000002");
  std::filesystem::remove(latest);
  ASSERT_EQ(mkfifo(latest.c_str(), 0600), 0);
  EXPECT_EQ(latest_checkpoint(folder_), folder_ + "/step-0000000002");
  // And it is not replaced either.
  Manifest manifest;
  manifest.step = 3;
  const std::string temporary = begin_checkpoint(real_file_system(), folder_, 3);
  EXPECT_THAT([&] { commit_checkpoint(real_file_system(), temporary, manifest); },
              ThrowsMessage<CheckpointError>(HasSubstr("latest is not a plain file")));
  EXPECT_TRUE(std::filesystem::is_fifo(latest));
}

TEST_F(CheckpointFolder, WithAManifestThatIsNoFileIsPassedOver) {
  add(1);
  const std::string manifest = add(2) + "/manifest.json";
  std::filesystem::remove(manifest);
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  EXPECT_EQ(latest_checkpoint(folder_), folder_ + "/step-0000000001");
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink("/dev/zero", manifest);
  EXPECT_EQ(latest_checkpoint(folder_), folder_ + "/step-0000000001");
}

TEST_F(CheckpointFolder, ThatCannotBeLookedAtIsAnErrorOfItsOwn) {
  std::filesystem::create_directory(folder_);
  const std::string loop = folder_ + "/loop";
  std::filesystem::create_symlink(loop, loop);
  const auto refuses = [&](const std::function<void(const std::string&)>& look) {
    EXPECT_THAT([&] { look(loop + "/run"); },
                ThrowsMessage<CheckpointError>(AllOf(HasSubstr(loop), HasSubstr("symbolic links; check"))));
  };
  refuses([](const std::string& path) { latest_checkpoint(path); });
  refuses([](const std::string& path) { resolve_checkpoint(path); });
  refuses([](const std::string& path) { list_checkpoints(path); });
  refuses([](const std::string& path) { begin_checkpoint(real_file_system(), path, 1); });
}

TEST_F(CheckpointFolder, WhatCouldNotBeReadIsNotPutInPlace) {
  add(1);
  Manifest manifest;
  manifest.step = 2;
  manifest.groups = {{{}, {"0.weight", "0.weight"}}};
  const std::string temporary = begin_checkpoint(real_file_system(), folder_, 2);
  EXPECT_THROW(commit_checkpoint(real_file_system(), temporary, manifest), CheckpointError);
  EXPECT_THAT(names(), ElementsAre("step-0000000001"));
  EXPECT_EQ(latest_checkpoint(folder_), folder_ + "/step-0000000001");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/step-0000000002"));
}

TEST_F(CheckpointFolder, AStepThatIsSavedAgainTakesThePlaceOfTheFirst) {
  const std::string first = add(4);
  const std::string second = add(4);
  EXPECT_NE(first, second);
  EXPECT_EQ(latest_checkpoint(folder_), second);
  EXPECT_THAT(remove_old_checkpoints(real_file_system(), second, {}), IsEmpty());
  EXPECT_THAT(names(), ElementsAre("step-0000000004.1"));
  add(4);
  EXPECT_EQ(latest_checkpoint(folder_), folder_ + "/step-0000000004");
}

TEST_F(CheckpointFolder, KeepsTheLastAndEveryRoundOne) {
  for (std::int64_t step = 1; step <= 12; ++step) {
    remove_old_checkpoints(real_file_system(), add(step), {2, 5});
  }
  EXPECT_THAT(names(), ElementsAre("step-0000000005", "step-0000000010", "step-0000000011", "step-0000000012"));
  // Never the one that was just saved, even if it is not among the last.
  remove_old_checkpoints(real_file_system(), add(3), {1, 0});
  EXPECT_THAT(names(), ElementsAre("step-0000000003", "step-0000000012"));
}

}  // namespace
}  // namespace gpipe
