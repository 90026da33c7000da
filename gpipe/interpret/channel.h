// Channel: one flow inside a process. An ordered, bounded queue from one worker to another.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/interpret/flow_ends.h"

namespace gpipe::detail {

// Note [Waiting]
// ~~~~~~~~~~~~~~
// To put a thread to sleep and to wake it costs microseconds, and on a virtual machine whose core has gone idle many
// more. The other side is often just about to act, so a wait looks again and again for some microseconds first, and
// offers the core to others each time: on a busy machine that amounts to going to sleep at once.
//
// Thread-safe.
template <typename Message>
class Channel : public FlowSink<Message>, public FlowSource<Message> {
 public:
  // REQUIRES: capacity >= 1.
  explicit Channel(int capacity) : capacity_(static_cast<std::size_t>(capacity)) {}

  // Waits for room. Throws CancelledError.
  void put(Message message) override {
    spin([&] { return count_ < capacity_; });
    std::unique_lock<std::mutex> lock(mutex_);
    room_.wait(lock, [&] { return cancelled_ || messages_.size() < capacity_; });
    if (cancelled_) throw CancelledError();
    messages_.push_back(std::move(message));
    count_ = messages_.size();
    lock.unlock();
    arrived_.notify_one();
  }

  // Waits for a message. Throws CancelledError.
  Message take() {
    spin([&] { return count_ > 0; });
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_.wait(lock, [&] { return cancelled_ || !messages_.empty(); });
    if (cancelled_) throw CancelledError();
    Message message = std::move(messages_.front());
    messages_.pop_front();
    count_ = messages_.size();
    lock.unlock();
    room_.notify_one();
    return message;
  }

  Message take(int /*micro_batch*/) override { return take(); }

  // Drops what is in the channel and makes every wait, now and until `reset`, throw.
  void cancel() override {
    std::deque<Message> dropped;  // freed outside the lock
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
      dropped.swap(messages_);
      count_ = 0;
    }
    arrived_.notify_all();
    room_.notify_all();
  }

  // REQUIRES: no worker is inside put or take.
  void reset() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = false;
    messages_.clear();
    count_ = 0;
  }

 private:
  static constexpr std::chrono::microseconds kSpinTime{50};

  // Waits without sleeping, until `ready` or for as long as that pays.
  template <typename Ready>
  void spin(const Ready& ready) const {
    if (ready()) return;
    const auto end = std::chrono::steady_clock::now() + kSpinTime;
    do {
      std::this_thread::yield();
    } while (!ready() && !cancelled_ && std::chrono::steady_clock::now() < end);
  }

  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable room_;
  std::deque<Message> messages_;
  std::atomic<std::size_t> count_{0};  // of the messages, read without the lock
  std::atomic<bool> cancelled_{false};
};

// Both ends of every flow, for workers that are all in this process; one capacity per flow.
template <typename Message>
FlowEnds<Message> make_channels(const std::vector<int>& capacities) {
  FlowEnds<Message> ends;
  for (const int capacity : capacities) {
    const auto channel = std::make_shared<Channel<Message>>(capacity);
    ends.sinks.push_back(channel);
    ends.sources.push_back(channel);
  }
  return ends;
}

}  // namespace gpipe::detail
