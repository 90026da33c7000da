// Streams of the late device: threads of the host, and the points that they reach.
#pragma once

#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace gpipe::test {

// Reached once, and for good. Thread-safe.
class LatePoint {
 public:
  void reach();
  void wait();
  bool is_reached();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ = false;
};

// Does what is enqueued, one task after the other, in a thread of its own that never ends. Thread-safe.
class LateStream {
 public:
  // The stream of that number on that device, 0 being its default stream; kNumPoolStreams follow.
  static LateStream& of(const c10::Stream& stream);
  static constexpr int kNumPoolStreams = 32;

  // Of all streams that were used so far.
  static void synchronize_all();

  // Throws c10::Error while the device is broken, see BrokenDevices.
  void enqueue(std::function<void()> task);
  // The same for what the device does for itself: it cannot break, and is not late on purpose.
  void enqueue_own(std::function<void()> task);
  // Everything that is enqueued now has been done.
  void synchronize();
  bool is_idle();

 private:
  struct Task {
    std::function<void()> work;
    bool may_be_late = false;
  };

  explicit LateStream(std::uint64_t number);
  [[noreturn]] void run();
  void push(Task task);

  const std::uint64_t number_;  // among those of all devices
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::uint64_t num_enqueued_ = 0;
  std::uint64_t num_done_ = 0;
};

// How long a copy takes, see SlowCopies. For what runs on the device.
void pass_copy_time();

// Throws c10::Error while the device is broken.
void check_late_device_works();

}  // namespace gpipe::test
