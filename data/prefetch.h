// Prefetch: a producer that works ahead in a thread of its own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace gpipe::data {

// Runs `produce` until it returns nothing or throws, at most `capacity` values ahead of the consumer. The values come
// in order. Confined to the consumer's thread; `produce` runs in the other one, and whatever it touches is that
// thread's until this object is gone.
template <typename Value>
class Prefetch {
 public:
  // REQUIRES: capacity >= 1.
  Prefetch(std::function<std::optional<Value>()> produce, int capacity)
      : capacity_(static_cast<std::size_t>(capacity)),
        thread_([this, produce = std::move(produce)] { run(produce); }) {}

  // Waits for the call of `produce` that is under way, if there is one, and for nothing else.
  ~Prefetch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_cancelled_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // The next value. Nothing once the producer has returned nothing; its exception once it has thrown: after all values
  // before it, and again on every later call.
  std::optional<Value> next() {
    if (!is_done_) {
      Message message = take();
      if (message.value) return std::move(message.value);
      is_done_ = true;
      exception_ = message.exception;
    }
    if (exception_ != nullptr) std::rethrow_exception(exception_);
    return std::nullopt;
  }

 private:
  struct Message {
    std::optional<Value> value;
    std::exception_ptr exception;
  };

  Message take() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return !messages_.empty(); });
    Message message = std::move(messages_.front());
    messages_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return message;
  }

  void run(const std::function<std::optional<Value>()>& produce) noexcept {
    for (bool has_value = true; has_value;) {
      Message message = produced(produce);
      has_value = message.value.has_value();
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return is_cancelled_ || messages_.size() < capacity_; });
      if (is_cancelled_) return;
      messages_.push_back(std::move(message));
      lock.unlock();
      changed_.notify_all();
    }
  }

  static Message produced(const std::function<std::optional<Value>()>& produce) {
    try {
      return {produce(), nullptr};
    } catch (...) {
      return {std::nullopt, std::current_exception()};
    }
  }

  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;  // and whether anybody waits for more, under the mutex
  bool is_cancelled_ = false;
  bool is_done_ = false;
  std::exception_ptr exception_;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace gpipe::data
