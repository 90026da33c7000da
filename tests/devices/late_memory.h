// Memory of the late device, and pinned memory of its host.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/devices/late_stream.h"

namespace gpipe::test {

// The memory of one device. What the host knows are addresses without any access; the same bytes stand at other
// addresses for what runs on the device. Thread-safe.
class LateMemory {
 public:
  static LateMemory& of(c10::DeviceIndex device);
  // Whose memory it is; -1 if it is none.
  static c10::DeviceIndex device_of(const void* pointer);
  // Where what runs on the device finds it; memory of the host stays where it is.
  static void* alias_of(void* pointer);

  // For a tensor of that stream, which overwrites what was there before anything else is done with it. Throws
  // c10::OutOfMemoryError.
  void* take(std::size_t bytes, const c10::Stream& stream);
  // Its next owner may be the next tensor that is made in the same stream, once what streams have recorded is done.
  void give(void* pointer);
  // What is enqueued in that stream, until the memory is given back, uses it.
  void record(const void* pointer, const c10::Stream& stream);

 private:
  struct Block {
    char* begin = nullptr;
    std::size_t bytes = 0;
    c10::Stream stream;  // it was made in
    std::vector<c10::Stream> users;
  };
  struct Leaving {
    Block block;
    std::vector<std::shared_ptr<LatePoint>> points;  // of its users
  };

  explicit LateMemory(c10::DeviceIndex device);
  void make_idle(const Block& block);
  void collect();

  const c10::DeviceIndex device_;
  char* base_ = nullptr;
  char* alias_ = nullptr;
  std::mutex mutex_;  // of everything below
  char* next_ = nullptr;
  std::map<const void*, Block> used_;
  std::multimap<std::pair<c10::StreamId, std::size_t>, char*> idle_;
  std::vector<Leaving> leaving_;
};

// Memory of the host that copies read and write later. Thread-safe.
class PinnedMemory {
 public:
  static c10::Allocator& allocator();
  // Keeps it from being freed, but not from being changed; null if it is not pinned.
  static std::shared_ptr<void> holder_of(const void* pointer);
};

}  // namespace gpipe::test
