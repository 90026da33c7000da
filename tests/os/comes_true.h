// How a test waits for what it cannot be told of: it looks again and again, up to a limit.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace gpipe::test {

// Whether the condition holds, now or before the limit has passed.
template <typename Condition>
bool comes_true(const Condition& condition, double limit_seconds = 30) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// The number by which the kernel knows the thread that asks.
inline int own_thread_number() { return static_cast<int>(syscall(SYS_gettid)); }

// Whether that thread of this process sleeps in the kernel, as one does that waits for a lock, a condition or bytes.
inline bool is_asleep(int thread_number) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread_number) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::size_t end_of_name = text.rfind(')');
  return end_of_name != std::string::npos && text.size() > end_of_name + 2 && text[end_of_name + 2] == 'S';
}

}  // namespace gpipe::test
