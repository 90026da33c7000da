#include "tests/devices/late_stream.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <omp.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>
#include <utility>

#include "tests/devices/late_device.h"

namespace gpipe::test {
namespace {

constexpr std::size_t kStreamsPerDevice = 1 + LateStream::kNumPoolStreams;
using Streams = std::array<std::atomic<LateStream*>, kNumLateDevices * kStreamsPerDevice>;

// Null until one is used, and never destroyed: the threads run until the program ends.
Streams& streams() {
  static auto* const all = new Streams();
  return *all;
}

// Read by all streams; a new epoch makes them seed their engines again.
struct Delays {
  std::atomic<int> most_microseconds{0};
  std::atomic<std::uint64_t> seed{0};
  std::atomic<std::uint64_t> epoch{0};
};

Delays& delays() {
  static auto* const all = new Delays();
  return *all;
}

std::atomic<bool>& is_broken() {
  static auto* const flag = new std::atomic<bool>(false);
  return *flag;
}

std::atomic<int>& copy_milliseconds() {
  static auto* const milliseconds = new std::atomic<int>(0);
  return *milliseconds;
}

// Confined to the thread of a stream.
class OwnDelays {
 public:
  explicit OwnDelays(std::uint64_t stream) : stream_(stream) {}

  // Most tasks start at once, so that some streams get far ahead of others.
  void pass() {
    const int most = delays().most_microseconds;
    if (most == 0) return;
    if (const std::uint64_t epoch = delays().epoch; epoch != std::exchange(epoch_, epoch)) {
      engine_.seed(delays().seed * 1000003 + stream_);
    }
    if (engine_() % 4 != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(engine_() % static_cast<std::uint64_t>(most)));
  }

 private:
  const std::uint64_t stream_;
  std::uint64_t epoch_ = 0;
  std::mt19937_64 engine_;
};

}  // namespace

void LatePoint::reach() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_reached_ = true;
  }
  changed_.notify_all();
}

void LatePoint::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return is_reached_; });
}

bool LatePoint::is_reached() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_reached_;
}

LateStream& LateStream::of(const c10::Stream& stream) {
  const std::size_t number =
      static_cast<std::size_t>(stream.device_index()) * kStreamsPerDevice + static_cast<std::size_t>(stream.id());
  std::atomic<LateStream*>& made = streams().at(number);
  if (made == nullptr) {
    static auto* const mutex = new std::mutex();
    const std::lock_guard<std::mutex> lock(*mutex);
    if (made == nullptr) made = new LateStream(number);
  }
  return *made;
}

void LateStream::synchronize_all() {
  for (const std::atomic<LateStream*>& made : streams()) {
    if (made != nullptr) made.load()->synchronize();
  }
}

LateStream::LateStream(std::uint64_t number) : number_(number) {
  std::thread([this] { run(); }).detach();
}

void LateStream::run() {
  at::get_num_threads();  // forces libtorch's own lazy setting, which would come later otherwise
  omp_set_num_threads(1);
  OwnDelays own_delays(number_);
  for (;;) {
    Task task;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (task.may_be_late) own_delays.pass();
    try {
      task.work();
    } catch (const std::exception& error) {
      std::cerr << "a task of the late device has failed: " << error.what() << std::endl;
      std::abort();
    }
    task.work = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++num_done_;
    }
    changed_.notify_all();
  }
}

void LateStream::push(Task task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    ++num_enqueued_;
  }
  changed_.notify_all();
}

void LateStream::enqueue(std::function<void()> task) {
  check_late_device_works();
  push({std::move(task), true});
}

void LateStream::enqueue_own(std::function<void()> task) { push({std::move(task), false}); }

void LateStream::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this, until = num_enqueued_] { return num_done_ >= until; });
}

bool LateStream::is_idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_done_ == num_enqueued_;
}

void check_late_device_works() { TORCH_CHECK(!is_broken(), "the late device is broken"); }

BrokenDevices::BrokenDevices() { is_broken() = true; }
BrokenDevices::~BrokenDevices() { is_broken() = false; }

LateDelays::LateDelays(int most_microseconds, std::uint64_t seed) {
  delays().seed = seed;
  ++delays().epoch;
  delays().most_microseconds = most_microseconds;
}

LateDelays::~LateDelays() { delays().most_microseconds = 0; }

std::uint64_t late_seed() {
  static const std::uint64_t seed = [] {
    const char* const given = std::getenv("GPIPE_LATE_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()() % 1000000;
  }();
  return seed;
}

HeldStream::HeldStream(const c10::Stream& stream) {
  LateStream::of(stream).enqueue_own([point = point_] { point->wait(); });
}

HeldStream::~HeldStream() { release(); }

void HeldStream::release() { point_->reach(); }

void make_late(const c10::Stream& stream, int milliseconds) {
  LateStream::of(stream).enqueue_own(
      [milliseconds] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
}

SlowCopies::SlowCopies(int milliseconds) { copy_milliseconds() = milliseconds; }
SlowCopies::~SlowCopies() { copy_milliseconds() = 0; }

void pass_copy_time() {
  if (const int milliseconds = copy_milliseconds(); milliseconds > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }
}

void synchronize_late_devices() { LateStream::synchronize_all(); }

std::vector<c10::Device> late_devices(int num_stages) {
  std::vector<c10::Device> devices;
  for (int stage = 0; stage < num_stages; ++stage) {
    devices.emplace_back(kLateDevice, static_cast<c10::DeviceIndex>(stage % kNumLateDevices));
  }
  return devices;
}

}  // namespace gpipe::test
