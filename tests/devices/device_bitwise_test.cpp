// Pipelines on devices that run behind the program leave the bits of the plain model on the CPU, whatever is late.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/execute/pipeline.h"
#include "gpipe/schedule/registry.h"
#include "tests/devices/late_device.h"
#include "tests/execute/training.h"
#include "tests/os/reserved_port.h"
#include "tests/transport/ranks.h"

namespace gpipe::test {
namespace {

constexpr int kMostDelayMicroseconds = 300;
constexpr std::int64_t kNumSamples = 13;

// Those of a whole grid, with GPIPE_LATE_REPETITIONS; 0: a part of the grid is tried once.
int num_repetitions() {
  const char* const given = std::getenv("GPIPE_LATE_REPETITIONS");
  return given != nullptr ? std::atoi(given) : 0;
}

struct Arrangement {
  std::string schedule;
  int num_workers = 0;
  Recompute recompute = Recompute::kNever;
};

std::string to_text(const Arrangement& arrangement) {
  return fmt::format("{}, K = {}, recompute {}", arrangement.schedule, arrangement.num_workers,
                     name(arrangement.recompute));
}

std::vector<Arrangement> whole_grid() {
  std::vector<Arrangement> grid;
  for (const std::string& schedule : training_schedule_names()) {
    for (const int num_workers : {2, 4}) {
      for (const Recompute recompute : {Recompute::kNever, Recompute::kAlways}) {
        grid.push_back({schedule, num_workers, recompute});
      }
    }
  }
  return grid;
}

// Every schedule once, with another number of workers and recompute mode than its neighbours have.
std::vector<Arrangement> part_of_grid() {
  std::vector<Arrangement> part;
  for (const Arrangement& arrangement : whole_grid()) {
    const std::size_t index = part.size();
    if (!part.empty() && part.back().schedule == arrangement.schedule) continue;
    part.push_back(
        {arrangement.schedule, index % 4 == 3 ? 4 : 2, index % 2 == 0 ? Recompute::kAlways : Recompute::kNever});
  }
  return part;
}

// The stages of a tied weight have to be on one device: the first and the last.
std::vector<c10::Device> devices_for(const TestModel& model, int num_stages) {
  std::vector<c10::Device> devices = late_devices(num_stages);
  if (!model.chain.ties().empty()) devices.back() = devices.front();
  return devices;
}

void expect_trains_as(const Trained& expected, const TestModel& model, const Arrangement& arrangement,
                      std::uint64_t seed) {
  SCOPED_TRACE(fmt::format("{}, GPIPE_LATE_SEED = {}", to_text(arrangement), seed));
  const LateDelays delays(kMostDelayMicroseconds, seed);
  PipelineOptions options = options_for(model, arrangement.num_workers, arrangement.schedule, arrangement.recompute);
  options.devices(devices_for(model, static_cast<int>(options.balance().size())));
  expect_same_bits(train_pipelined(model, kNumSamples, options), expected);
}

class DeviceGrid : public ::testing::TestWithParam<std::string> {};

TEST_P(DeviceGrid, TrainsAsThePlainModelDoes) {
  const TestModel model = make_model(GetParam());
  const Trained expected = train_plainly(model, kNumSamples);
  if (num_repetitions() == 0) {
    for (const Arrangement& arrangement : part_of_grid()) {
      expect_trains_as(expected, model, arrangement, late_seed());
      ASSERT_FALSE(HasFailure());
    }
  }
  for (int repetition = 0; repetition < num_repetitions(); ++repetition) {
    for (const Arrangement& arrangement : whole_grid()) {
      expect_trains_as(expected, model, arrangement, late_seed() + static_cast<std::uint64_t>(repetition));
      ASSERT_FALSE(HasFailure());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceGrid, ::testing::Values("mlp", "cnn", "transformer", "padded", "unet"),
                         [](const auto& instance) { return instance.param; });

// Ranks in threads of this process: what is sent goes over the host.
TEST(DeviceRanks, TrainAsThePlainModelDoes) {
  const TestModel model = make_model("transformer");
  const Trained expected = train_plainly(model, kNumSamples);
  const LateDelays delays(kMostDelayMicroseconds, late_seed());
  for (const char* const schedule : {"1f1b", "zb-v"}) {
    const ReservedPort port;
    for (const std::exception_ptr& error : run_each(2, [&](int rank) {
           PipelineOptions options = options_for(model, 2, schedule, Recompute::kAlways);
           options.devices(devices_for(model, static_cast<int>(options.balance().size())));
           const auto peers = std::make_shared<Peers>(world_of(rank, 2, port.number()));
           const Trained got = train_pipelined(model, kNumSamples, options.peers(peers));
           for (const auto& [name, tensor] : got.tensors) expect_same_bits(tensor, expected.tensors.at(name), name);
         })) {
      EXPECT_EQ(text_of(error), "") << schedule;
    }
  }
}

}  // namespace
}  // namespace gpipe::test
