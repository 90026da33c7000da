// BusyNeighbours: threads that keep other cores as busy as the other workers of a pipeline do, while something is
// measured.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace gpipe::detail {

// Cores share the way to memory, the last cache and often the power: alone, a layer is faster than in a pipeline. Each
// thread multiplies matrices that stay in a cache of its own and walks through memory that does not, by turns.
class BusyNeighbours {
 public:
  // Returns when all of them are at work.
  explicit BusyNeighbours(int count);
  ~BusyNeighbours();
  BusyNeighbours(const BusyNeighbours&) = delete;
  BusyNeighbours& operator=(const BusyNeighbours&) = delete;

 private:
  void work();
  void stop();

  std::atomic<bool> stop_{false};
  std::atomic<int> num_at_work_{0};
  std::vector<std::thread> threads_;
};

}  // namespace gpipe::detail
