// Prefetch: a producer that works ahead in a thread of its own.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "gpipe/interpret/channel.h"

namespace gpipe::data {

// Runs `produce` until it returns nothing or throws, at most `capacity` values ahead of the consumer. The values come
// in order. Confined to the consumer's thread; `produce` runs in the other one, and whatever it touches is that
// thread's until this object is gone.
template <typename Value>
class Prefetch {
 public:
  // REQUIRES: capacity >= 1.
  Prefetch(std::function<std::optional<Value>()> produce, int capacity)
      : channel_(capacity), thread_([this, produce = std::move(produce)] { run(produce); }) {}

  // Waits for the call of `produce` that is under way, if there is one, and for nothing else.
  ~Prefetch() {
    channel_.cancel();
    thread_.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  // The next value. Nothing once the producer has returned nothing; its exception once it has thrown: after all values
  // before it, and again on every later call.
  std::optional<Value> next() {
    if (!is_done_) {
      Message message = channel_.take();
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

  void run(const std::function<std::optional<Value>()>& produce) noexcept {
    try {
      for (bool has_value = true; has_value;) {
        Message message = produced(produce);
        has_value = message.value.has_value();
        channel_.put(std::move(message));
      }
    } catch (const CancelledError&) {  // nobody waits any more
    }
  }

  static Message produced(const std::function<std::optional<Value>()>& produce) {
    try {
      return {produce(), nullptr};
    } catch (...) {
      return {std::nullopt, std::current_exception()};
    }
  }

  Channel<Message> channel_;
  bool is_done_ = false;
  std::exception_ptr exception_;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace gpipe::data
