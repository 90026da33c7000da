#include "gpipe/interpret/workers.h"

#include <chrono>
#include <utility>

namespace gpipe::detail {

Workers::Workers(int num_workers) {
  threads_.reserve(num_workers);
  try {
    for (int worker = 0; worker < num_workers; ++worker) threads_.emplace_back([this, worker] { loop(worker); });
  } catch (...) {  // the system has no more threads
    join();
    throw;
  }
}

Workers::~Workers() { join(); }

void Workers::join() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(const std::function<void(int)>& task, const std::function<void()>& on_error, const Tick& tick) {
  std::unique_lock<std::mutex> lock(mutex_);
  task_ = &task;
  on_error_ = &on_error;
  first_error_ = nullptr;
  num_running_ = size();
  ++round_;
  start_.notify_all();
  const auto done = [&] { return num_running_ == 0; };
  if (tick.seconds > 0) {
    while (!first_error_ && !done_.wait_for(lock, std::chrono::duration<double>(tick.seconds), done)) {
      lock.unlock();
      try {
        tick.call();
      } catch (...) {
        fail(std::current_exception());
      }
      lock.lock();
    }
  }
  done_.wait(lock, done);
  if (first_error_) std::rethrow_exception(std::exchange(first_error_, nullptr));
}

void Workers::loop(int worker) {
  std::uint64_t round = 0;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      start_.wait(lock, [&] { return stop_ || round_ != round; });
      if (stop_) return;
      round = round_;
    }
    try {
      (*task_)(worker);
    } catch (...) {
      fail(std::current_exception());
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--num_running_ == 0) done_.notify_one();
  }
}

void Workers::fail(std::exception_ptr error) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_error_) return;
    first_error_ = std::move(error);
  }
  (*on_error_)();
}

}  // namespace gpipe::detail
