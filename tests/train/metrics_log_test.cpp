#include "train/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "gpipe/error.h"
#include "tests/os/file_limits.h"
#include "tests/os/temporary_folder.h"

namespace gpipe::train {
namespace {

using ::testing::HasSubstr;

nlohmann::ordered_json step(std::int64_t number, double loss) { return {{"step", number}, {"loss", loss}}; }

// What is written of them.
std::string line_of(const nlohmann::ordered_json& metrics) {
  const test::TemporaryFolder folder;
  MetricsLog log(folder.path("log"), false);
  log.append(metrics);
  return test::content_of(log.path());
}

template <typename Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

TEST(MetricsLog, WritesOneObjectALineInTheOrderOfItsFields) {
  const test::TemporaryFolder folder;
  MetricsLog log(folder.path("log"), false);
  log.append(step(1, 0.5));
  EXPECT_EQ(test::content_of(log.path()), "{\"step\":1,\"loss\":0.5}\n");  // at once
  log.append({{"split", "test"}, {"accuracy", 0.875}, {"done", true}});
  EXPECT_EQ(test::content_of(log.path()),
            "{\"step\":1,\"loss\":0.5}\n{\"split\":\"test\",\"accuracy\":0.875,\"done\":true}\n");
}

TEST(MetricsLog, WritesNullForWhatJsonHasNoNumberFor) {
  EXPECT_EQ(line_of(step(7, std::nan(""))), "{\"step\":7,\"loss\":null}\n");
  EXPECT_EQ(line_of(step(7, -std::numeric_limits<double>::infinity())), "{\"step\":7,\"loss\":null}\n");
}

TEST(MetricsLog, StaysOneLineAndUtf8WhateverTheText) {
  EXPECT_EQ(line_of({{"text", "a\n\"\xff"}}), "{\"text\":\"a\\n\\\"\ufffd\"}\n");
}

TEST(MetricsLog, ReplacesAFileOnlyIfToldTo) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("log", "precious");
  EXPECT_THAT(refusal([&] { MetricsLog(path, false); }), HasSubstr("'" + path + "' already exists"));
  EXPECT_EQ(test::content_of(path), "precious");
  MetricsLog(path, true).append(step(1, 2));
  EXPECT_EQ(test::content_of(path), "{\"step\":1,\"loss\":2.0}\n");
}

TEST(MetricsLog, GoesOnBehindTheStepThatIsResumed) {
  const test::TemporaryFolder folder;
  const std::string lines = "{\"step\":1,\"loss\":1.0}\n{\"step\":2,\"loss\":2.0}\n";
  const std::string path = folder.write("log", lines + "{\"step\":3,\"loss\":3.0}\n{\"step\":4,\"lo");
  MetricsLog::resume(path, 2).append(step(3, 4));
  EXPECT_EQ(test::content_of(path), lines + "{\"step\":3,\"loss\":4.0}\n");
  MetricsLog::resume(folder.path("new"), 2).append(step(3, 4));
  EXPECT_EQ(test::content_of(folder.path("new")), "{\"step\":3,\"loss\":4.0}\n");
}

TEST(MetricsLog, ReplacesNothingButPlainFiles) {
  const test::TemporaryFolder folder;
  folder.write("log", "old\n");
  std::filesystem::create_symlink("log", folder.path("link"));
  EXPECT_THAT(refusal([&] { MetricsLog(folder.path("link"), true); }), HasSubstr("it is a link, not a plain file"));
  EXPECT_THAT(refusal([&] { MetricsLog::resume(folder.path("link"), 2); }), HasSubstr("it is a link"));
  EXPECT_EQ(test::content_of(folder.path("log")), "old\n");
}

TEST(MetricsLog, ThatCannotGoOnLeavesTheOldFile) {
  const test::TemporaryFolder folder;
  std::string lines;
  for (int number = 1; number <= 20; ++number) lines += step(number, 1).dump() + "\n";
  const std::string path = folder.write("log", lines);
  const FileSizeLimit limit(100);
  EXPECT_THAT(refusal([&] { MetricsLog::resume(path, 20); }), HasSubstr("File too large"));
  EXPECT_EQ(test::content_of(path), lines);
}

TEST(MetricsLog, SaysWhyItCannotWrite) {
  EXPECT_THAT(refusal([] { MetricsLog("/no/such/folder/log", false); }), HasSubstr("No such file or directory"));
  MetricsLog full("/dev/full", false);
  EXPECT_THAT(refusal([&] { full.append(step(1, 2)); }), HasSubstr("No space left on device"));
}

}  // namespace
}  // namespace gpipe::train
