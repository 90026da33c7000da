#include "gpipe/checkpoint/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "gpipe/os/processors.h"

namespace gpipe::detail {

void run_parallel(std::size_t count, const std::function<void(std::size_t)>& work, int num_threads) {
  check_threads("num_threads", num_threads);
  const std::size_t wanted =
      num_threads > 0 ? static_cast<std::size_t>(num_threads) : std::max(1U, std::thread::hardware_concurrency());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto run = [&] {
    for (std::size_t index = next++; index < count; index = next++) {
      try {
        work(index);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (first_error == nullptr) first_error = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t thread = 1; thread < std::min(wanted, count); ++thread) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  if (first_error != nullptr) std::rethrow_exception(first_error);
}

}  // namespace gpipe::detail
