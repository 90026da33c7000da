// Channel: one flow inside a process. An ordered, bounded queue from one worker to another.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

#include "gpipe/error.h"

namespace gpipe {

// Thrown out of a wait when another worker has failed. The caller of the step sees that worker's error, not this one.
class CancelledError : public Error {
 public:
  CancelledError() : Error("cancelled: another worker failed first") {}
};

// Thread-safe. Sleeps when it waits: it never spins.
template <typename Message>
class Channel {
 public:
  // REQUIRES: capacity >= 1.
  explicit Channel(int capacity) : capacity_(static_cast<std::size_t>(capacity)) {}

  // Waits for room. Throws CancelledError.
  void put(Message message) {
    std::unique_lock<std::mutex> lock(mutex_);
    room_.wait(lock, [&] { return cancelled_ || messages_.size() < capacity_; });
    if (cancelled_) throw CancelledError();
    messages_.push_back(std::move(message));
    lock.unlock();
    arrived_.notify_one();
  }

  // Waits for a message. Throws CancelledError.
  Message take() {
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_.wait(lock, [&] { return cancelled_ || !messages_.empty(); });
    if (cancelled_) throw CancelledError();
    Message message = std::move(messages_.front());
    messages_.pop_front();
    lock.unlock();
    room_.notify_one();
    return message;
  }

  // Drops what is in the channel and makes every wait, now and until `reset`, throw.
  void cancel() {
    std::deque<Message> dropped;  // freed outside the lock
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
      dropped.swap(messages_);
    }
    arrived_.notify_all();
    room_.notify_all();
  }

  // REQUIRES: no worker is inside put or take.
  void reset() {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = false;
    messages_.clear();
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable room_;
  std::deque<Message> messages_;
  bool cancelled_ = false;
};

}  // namespace gpipe
