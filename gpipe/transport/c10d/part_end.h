// PartEnd: the end of this rank's part in the world, with the error that everything throws from then on.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace gpipe::detail {

// Thread-safe.
class PartEnd {
 public:
  // Begins the end: from now on everybody waits for `set`. Whoever does not come first waits here, too, and gets the
  // error thrown.
  void begin() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (std::exchange(has_begun_, true)) wait(lock);
  }
  // Once it is clear who is to blame.
  void set(const std::exception_ptr& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
    for (const auto& [number, wake] : listeners_) wake();
    is_set_.notify_all();
  }

  // Throws the error, if the part has ended.
  void check() const {
    std::unique_lock<std::mutex> lock(mutex_);
    if (has_begun_) wait(lock);
  }
  bool has_begun() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return has_begun_;
  }

  // Calls `wake` once, in `set`, until `forget`; at once if it was set. `wake` must not call back.
  int add_listener(std::function<void()> wake) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != nullptr) wake();
    listeners_.emplace(next_listener_, std::move(wake));
    return next_listener_++;
  }
  void forget(int listener) {
    const std::lock_guard<std::mutex> lock(mutex_);
    listeners_.erase(listener);
  }

 private:
  [[noreturn]] void wait(std::unique_lock<std::mutex>& lock) const {
    is_set_.wait(lock, [this] { return error_ != nullptr; });
    std::rethrow_exception(error_);
  }

  mutable std::mutex mutex_;  // of everything below
  mutable std::condition_variable is_set_;
  bool has_begun_ = false;
  std::exception_ptr error_;
  std::map<int, std::function<void()>> listeners_;
  int next_listener_ = 0;
};

}  // namespace gpipe::detail
