// What every test on the late device begins and ends with.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <iostream>

#include "tests/devices/late_device.h"

namespace gpipe::test {
namespace {

class LateEnvironment final : public ::testing::Environment {
  void SetUp() override {
    at::set_num_threads(1);  // as the streams have
    std::cout << "delays of the late device: GPIPE_LATE_SEED=" << late_seed() << " repeats them" << std::endl;
  }
  void TearDown() override { synchronize_late_devices(); }
};

[[maybe_unused]] const ::testing::Environment* const environment =
    ::testing::AddGlobalTestEnvironment(new LateEnvironment());

}  // namespace
}  // namespace gpipe::test
