// The files of a recording: what is written is read, and nothing else is taken for one.
#include "gpipe/recording/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "gpipe/error.h"
#include "gpipe/recording/verify_request.h"

namespace gpipe::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

RecordingHeader header() {
  RecordingHeader header;
  header.pipeline = 1;
  header.process = 2;
  header.world_size = 4;
  header.num_replicas = 2;
  header.replica = 1;
  header.num_stages = 2;
  header.schedule = "zb-v";
  header.recompute = "always";
  header.num_micro_batches = 8;
  header.layers = {{"in \"quoted\"", "Linear"}, {"out", ""}};
  return header;
}

Recording first_step() {
  Recording step;
  step.tensors.push_back({RecordKind::kLeft, 0, 1, 3, 2, "", "abc", "[2] of Float", 0});
  step.tensors.push_back({RecordKind::kGradient, 0, 1, 3, -1, "out.weight", "def", "[2, 2] of Float", 0.1});
  step.losses.push_back({0, 1.0 / 3, std::numeric_limits<double>::infinity(), "Float"});
  step.strays.push_back({1, "[6] of Float"});
  step.probes.push_back({3, true, "no \"input\"", {{"a", 1.5}, {"b", -2}}});
  step.num_steps = 1;
  return step;
}

TEST(Recording, IsReadAsItWasWritten) {
  const Recording read = parse_recording(to_line(header()) + to_lines(first_step(), true));
  EXPECT_EQ(read.header.pipeline, 1);
  EXPECT_EQ(read.header.process, 2);
  EXPECT_EQ(read.header.world_size, 4);
  EXPECT_EQ(read.header.num_replicas, 2);
  EXPECT_EQ(read.header.replica, 1);
  EXPECT_EQ(read.header.num_stages, 2);
  EXPECT_EQ(read.header.schedule, "zb-v");
  EXPECT_EQ(read.header.recompute, "always");
  EXPECT_EQ(read.header.num_micro_batches, 8);
  ASSERT_THAT(read.header.layers, SizeIs(2));
  EXPECT_EQ(read.header.layers[0].name, "in \"quoted\"");
  EXPECT_EQ(read.header.layers[0].type, "Linear");
  EXPECT_EQ(read.num_steps, 1);
  ASSERT_THAT(read.tensors, SizeIs(2));
  EXPECT_EQ(read.tensors[0].kind, RecordKind::kLeft);
  EXPECT_EQ(read.tensors[0].stage, 1);
  EXPECT_EQ(read.tensors[0].layer, 3);
  EXPECT_EQ(read.tensors[0].micro_batch, 2);
  EXPECT_EQ(read.tensors[0].hash, "abc");
  EXPECT_EQ(read.tensors[1].micro_batch, -1);
  EXPECT_EQ(read.tensors[1].name, "out.weight");
  EXPECT_EQ(read.tensors[1].norm, 0.1);
  ASSERT_THAT(read.losses, SizeIs(1));
  EXPECT_EQ(read.losses[0].of_parts, 1.0 / 3);
  EXPECT_EQ(read.losses[0].of_whole, std::numeric_limits<double>::infinity());
  EXPECT_EQ(read.losses[0].type, "Float");
  ASSERT_THAT(read.strays, SizeIs(1));
  EXPECT_EQ(read.strays[0].shape, "[6] of Float");
  ASSERT_THAT(read.probes, SizeIs(1));
  EXPECT_TRUE(read.probes[0].has_own_generator);
  EXPECT_EQ(read.probes[0].problem, "no \"input\"");
  ASSERT_THAT(read.probes[0].calls, SizeIs(2));
  EXPECT_EQ(read.probes[0].calls[1].sum, -2);
}

TEST(Recording, AStepThatIsNotCompleteDoesNotCountAndWeightsDo) {
  Recording weights;
  weights.tensors.push_back({RecordKind::kWeight, 0, 0, 0, -1, "in.weight", "w", "[1] of Float", 1});
  const std::string whole = to_line(header()) + to_lines(weights, false) + to_lines(first_step(), false);
  Recording read = parse_recording(whole + R"({"record":"left","st)");
  EXPECT_EQ(read.num_steps, 0);
  ASSERT_THAT(read.tensors, SizeIs(1));
  EXPECT_EQ(read.tensors[0].name, "in.weight");
  EXPECT_THAT(read.losses, IsEmpty());
}

TEST(Recording, RefusesWhatIsNone) {
  const auto refused = [](const std::string& text, const std::string& why) {
    EXPECT_THAT([&] { parse_recording(text); }, ThrowsMessage<ParseError>(HasSubstr(why))) << text;
  };
  const std::string first = to_line(header());
  refused("", "the recording is empty");
  refused("x\n", "line 1");
  refused("{\"gpipe_recording\": 2}\n", "line 1");
  refused(first + "{\"record\": \"something\"}\n", "line 2");
  refused(first + first, "line 2");
  refused(first + "{\"record\": \"complete\", \"step\": -1}\n", "line 2");
  refused(first + "{\"record\": \"stray weight\", \"layer\": 1}\n", "line 2");
}

TEST(Recording, EveryShortenedFileIsReadOrRefused) {
  const std::string whole = to_line(header()) + to_lines(first_step(), true);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    for (const std::string& text : {whole.substr(0, size), whole.substr(0, size) + "\n", whole.substr(size)}) {
      try {
        parse_recording(text);
      } catch (const ParseError& error) {
        EXPECT_NE(std::string(error.what()), "");
      }
    }
  }
}

std::optional<VerifyRequest> request_of(const std::vector<std::string>& environment) {
  return verify_request_from([&](std::string_view name) -> std::optional<std::string> {
    for (const std::string& entry : environment) {
      if (entry.substr(0, entry.find('=')) == name) return entry.substr(entry.find('=') + 1);
    }
    return std::nullopt;
  });
}

TEST(VerifyRequest, IsReadFromTheEnvironmentAsItWasWritten) {
  EXPECT_FALSE(request_of({}));
  VerifyRequest request;
  request.folder = "/tmp/x";
  EXPECT_FALSE(request_of(to_environment(request))->changes_stages());
  request.num_steps = 5;
  request.num_stages = 4;
  request.schedule = "zb-v";
  request.recompute = Recompute::kAlways;
  request.num_micro_batches = {8, 4};
  request.with_arrivals = true;
  request.probed = ProbedLayer{1, 7};
  const VerifyRequest read = *request_of(to_environment(request));
  EXPECT_EQ(read.folder, "/tmp/x");
  EXPECT_EQ(read.num_steps, 5);
  EXPECT_EQ(read.num_stages, 4);
  EXPECT_EQ(read.schedule, "zb-v");
  EXPECT_EQ(read.recompute, Recompute::kAlways);
  EXPECT_THAT(read.num_micro_batches, ElementsAre(8, 4));
  EXPECT_TRUE(read.with_arrivals);
  EXPECT_EQ(read.probed->pipeline, 1);
  EXPECT_EQ(read.probed->layer, 7);
}

TEST(VerifyRequest, RefusesWhatItCannotReadAndNamesTheVariable) {
  for (const char* entry : {"GPIPE_VERIFY_STAGES=0", "GPIPE_VERIFY_STEPS=x", "GPIPE_VERIFY_MICRO_BATCHES=4,",
                            "GPIPE_VERIFY_PROBE=1:", "GPIPE_VERIFY_RECOMPUTE=sometimes"}) {
    const std::string name = std::string(entry).substr(0, std::string(entry).find('='));
    EXPECT_THAT(
        [&] {
          request_of({"GPIPE_VERIFY=/tmp", entry});
        },
        ThrowsMessage<EnvironmentError>(HasSubstr(name)))
        << entry;
  }
}

}  // namespace
}  // namespace gpipe::detail
