// The prefetch thread: order, exceptions, and an end at any moment. Built with the thread sanitizer by `make tsan`.
#include "data/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>

namespace gpipe::data {
namespace {

// 0, 1, ..., end - 1.
std::function<std::optional<int>()> count_to(int end) {
  return [next = 0, end]() mutable -> std::optional<int> {
    return next < end ? std::optional<int>(next++) : std::nullopt;
  };
}

TEST(Prefetch, KeepsTheOrderAndEnds) {
  for (const int capacity : {1, 2, 100}) {
    Prefetch<int> prefetch(count_to(1000), capacity);
    for (int value = 0; value < 1000; ++value) ASSERT_EQ(prefetch.next(), value);
    EXPECT_EQ(prefetch.next(), std::nullopt);
    EXPECT_EQ(prefetch.next(), std::nullopt);
  }
  EXPECT_EQ(Prefetch<int>(count_to(0), 1).next(), std::nullopt);
}

TEST(Prefetch, PassesOnWhatCannotBeCopied) {
  int value = 0;
  Prefetch<std::unique_ptr<int>> prefetch([&] { return std::make_optional(std::make_unique<int>(value++)); }, 2);
  EXPECT_EQ(**prefetch.next(), 0);
  EXPECT_EQ(**prefetch.next(), 1);
}

TEST(Prefetch, ThrowsWhatTheProducerThrewAfterTheValuesBeforeIt) {
  auto count = count_to(3);
  Prefetch<int> prefetch(
      [&]() -> std::optional<int> {
        if (const std::optional<int> value = count()) return value;
        throw std::domain_error("no more");
      },
      8);
  for (int value = 0; value < 3; ++value) EXPECT_EQ(prefetch.next(), value);
  for (int again = 0; again < 3; ++again) EXPECT_THROW(prefetch.next(), std::domain_error);
}

TEST(Prefetch, IsNeverMoreThanItsCapacityAhead) {
  std::atomic<int> num_produced{0};
  Prefetch<int> prefetch([&] { return std::optional<int>(num_produced++); }, 3);
  for (int num_taken = 1; num_taken <= 1000; ++num_taken) {
    prefetch.next();
    EXPECT_LE(num_produced, num_taken + 3 + 1);  // and the one that waits for room
  }
}

TEST(Prefetch, CanGoAwayWhileTheProducerWaitsForRoom) {
  for (int round = 0; round < 200; ++round) {
    Prefetch<int> prefetch(count_to(1000000), 1);
    for (int num_taken = 0; num_taken < round % 4; ++num_taken) prefetch.next();
  }
}

TEST(Prefetch, CanGoAwayAfterTheEndAndAfterAnException) {
  for (int round = 0; round < 100; ++round) {
    Prefetch<int> ended(count_to(1), 4);
    Prefetch<int> failed([]() -> std::optional<int> { throw std::domain_error("at once"); }, 4);
    if (round % 2 == 0) {
      EXPECT_THROW(failed.next(), std::domain_error);
    }
  }
}

TEST(Prefetch, WaitsForTheCallUnderWayWhenItGoesAway) {
  std::promise<void> entered;
  std::atomic<bool> is_done{false};
  {
    bool is_first = true;
    Prefetch<int> prefetch(
        [&]() -> std::optional<int> {
          if (is_first) entered.set_value();
          is_first = false;
          for (int turn = 0; turn < 1000; ++turn) std::this_thread::yield();
          is_done = true;
          return 0;
        },
        1);
    entered.get_future().wait();
  }
  EXPECT_TRUE(is_done);
}

}  // namespace
}  // namespace gpipe::data
