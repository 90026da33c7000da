// Workers: persistent threads that run one task each, together, step after step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gpipe::detail {

struct Tick {
  double seconds = 0;  // between two calls; 0 = never
  std::function<void()> call;
};

// Thread-compatible: one caller at a time.
class Workers {
 public:
  explicit Workers(int num_workers);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // Runs task(worker) on every worker's thread and waits for all of them. The first error to be thrown wins: `on_error`
  // is called at once, in the thread that threw, so that it can wake the others; when all have ended it is rethrown
  // here. The workers can be used again.
  //
  // While it waits, `tick` is called in the caller's thread again and again; what it throws counts like an error of a
  // worker.
  void run(const std::function<void(int)>& task, const std::function<void()>& on_error, const Tick& tick = {});

 private:
  void loop(int worker);
  void join();
  void fail(std::exception_ptr error);

  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  std::uint64_t round_ = 0;  // counts the calls of run
  int num_running_ = 0;
  bool stop_ = false;
  const std::function<void(int)>* task_ = nullptr;
  const std::function<void()>* on_error_ = nullptr;
  std::exception_ptr first_error_;
  std::vector<std::thread> threads_;
};

}  // namespace gpipe::detail
