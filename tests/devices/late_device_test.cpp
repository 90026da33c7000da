// The late device itself: what the tests on it rely on.
#include "tests/devices/late_device.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/devices/late_guard.h"
#include "tests/model/same_bits.h"
#include "tests/os/comes_true.h"

namespace gpipe::test {
namespace {

const c10::Device kFirst(kLateDevice, 0);
const c10::Device kSecond(kLateDevice, 1);

c10::Stream pool_stream(c10::Device device) { return LateGuard().getStreamFromGlobalPool(device, false); }

TEST(LateDevice, ComputesWhatTheCpuDoes) {
  at::set_num_threads(1);
  const at::Tensor values = torch::randn({64, 64});
  const at::Tensor there = values.to(kSecond);
  EXPECT_TRUE(same_bits(there.matmul(there) + 1, values.matmul(values) + 1));
}

TEST(LateDevice, ItsMemoryCannotBeReadOnTheHost) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const at::Tensor there = torch::ones({3}).to(kFirst);
        volatile float read = *there.data_ptr<float>();
        (void)read;
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

TEST(LateDevice, AStreamDoesNotWaitForAnotherOneWithoutAnEvent) {
  const c10::Stream slow = pool_stream(kFirst);
  const at::Tensor there = torch::zeros({3}).to(kFirst);
  HeldStream held(slow);
  {
    const c10::StreamGuard guard(slow);
    there.add_(1);
  }
  EXPECT_TRUE(same_bits(there.cpu(), torch::zeros({3})));
  held.release();
  LateGuard().synchronizeStream(slow);
  EXPECT_TRUE(same_bits(there.cpu(), torch::ones({3})));
}

TEST(LateDevice, MemoryThatAnotherStreamReadsIsOverwrittenUnlessThatIsRecorded) {
  for (const bool is_recorded : {false, true}) {
    const c10::Stream reader = pool_stream(kFirst);
    HeldStream held(reader);
    at::Tensor read;
    {
      at::Tensor freed = torch::ones({1000}).to(kFirst);
      LateGuard().synchronizeStream(LateGuard().getDefaultStream(kFirst));
      if (is_recorded) freed.record_stream(reader);
      const c10::StreamGuard guard(reader);
      read = freed.clone();
    }
    LateGuard().synchronizeStream(LateGuard().getDefaultStream(kFirst));
    const at::Tensor next = torch::zeros({1000}).to(kFirst);
    LateGuard().synchronizeStream(LateGuard().getDefaultStream(kFirst));
    held.release();
    LateGuard().synchronizeStream(reader);
    EXPECT_EQ(bool(same_bits(read, torch::ones({1000}))), is_recorded);
  }
}

TEST(LateDevice, PinnedMemoryIsReadLaterAndOtherMemoryAtOnce) {
  for (const bool is_pinned : {false, true}) {
    at::Tensor values = torch::ones({1000});
    if (is_pinned) values = values.pin_memory();
    EXPECT_EQ(values.is_pinned(), is_pinned);
    const c10::Stream stream = pool_stream(kFirst);
    HeldStream held(stream);
    const c10::StreamGuard guard(stream);
    const at::Tensor there = values.to(kFirst, /*non_blocking=*/true);
    values.zero_();
    held.release();
    EXPECT_TRUE(same_bits(there, is_pinned ? torch::zeros({1000}) : torch::ones({1000})));
  }
}

TEST(LateDevice, RefusesTensorsOfTwoDevicesInOneOperation) {
  EXPECT_THROW(torch::ones({3}).to(kFirst) + torch::ones({3}).to(kSecond), c10::Error);
  EXPECT_THROW(torch::ones({3}).to(kFirst) + torch::ones({3}), c10::Error);
  EXPECT_TRUE(same_bits(torch::ones({3}).to(kFirst) + torch::ones({}), torch::full({3}, 2.0)));
}

}  // namespace
}  // namespace gpipe::test
