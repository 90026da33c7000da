// The late device: what is enqueued on it is done later, as on a GPU. For tests of the order of work, without a GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/devices/late_stream.h"

namespace gpipe::test {

// It takes CUDA's place in a libtorch without CUDA, so that autograd, dropout and modules take their ways for CUDA: a
// program that has this header's functions has kNumLateDevices of them.
//
//  - A stream is a thread of the host. Kernels, copies and events are done in the order in which they were enqueued in
//    their stream, at some later time; between streams there is no order but by events.
//  - The host cannot touch memory of the device: that is a segmentation fault.
//  - Freed memory goes to the next tensor of its size in the stream it was made in, as by CUDA's caching allocator, and
//    is overwritten: who still reads it in another stream, without record_stream, finds something else there.
//  - A copy between two devices goes as CUDA's does without peer access: a tensor with gaps is gathered in the current
//    stream of its own device first. Copies from and to pinned memory are done later; copies from other memory of the
//    host have read it when the call returns, and copies to it are complete.
//  - A kernel does what libtorch's does on the CPU, one thread each, on memory of the same layout: the same bits.
//  - Its generators are those of the CPU.
//
// Operations whose results are views, of which only the most common are there, are refused unless they are.
inline constexpr c10::DeviceType kLateDevice = c10::DeviceType::CUDA;
inline constexpr int kNumLateDevices = 2;

// For that many stages, round robin.
std::vector<c10::Device> late_devices(int num_stages);

// Everything that was enqueued anywhere has been done.
void synchronize_late_devices();

// While it lives, tasks of all streams start late now and then, by up to `most_microseconds`, as an engine per stream
// that is seeded with `seed` decides. Without one, or with 0, none is late on purpose.
class LateDelays {
 public:
  LateDelays(int most_microseconds, std::uint64_t seed);
  ~LateDelays();
  LateDelays(const LateDelays&) = delete;
  LateDelays& operator=(const LateDelays&) = delete;
};

// GPIPE_LATE_SEED, or a new number at every start of the program. It is printed at the start.
std::uint64_t late_seed();

// While it lives, or until it is released, the stream does nothing that was enqueued behind it.
class HeldStream {
 public:
  explicit HeldStream(const c10::Stream& stream);
  ~HeldStream();
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  void release();

 private:
  const std::shared_ptr<LatePoint> point_ = std::make_shared<LatePoint>();
};

// The stream does nothing else for that long, once it has come to it.
void make_late(const c10::Stream& stream, int milliseconds);

// While it lives, each copy between devices, or from pinned memory of the host to one, takes that long.
class SlowCopies {
 public:
  explicit SlowCopies(int milliseconds);
  ~SlowCopies();
  SlowCopies(const SlowCopies&) = delete;
  SlowCopies& operator=(const SlowCopies&) = delete;
};

// While it lives, the device is as after a sticky error: whatever is asked of it throws c10::Error.
class BrokenDevices {
 public:
  BrokenDevices();
  ~BrokenDevices();
  BrokenDevices(const BrokenDevices&) = delete;
  BrokenDevices& operator=(const BrokenDevices&) = delete;
};

}  // namespace gpipe::test
