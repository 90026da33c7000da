#include "gpipe/model/busy_neighbours.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <omp.h>

namespace gpipe::detail {
namespace {

constexpr std::int64_t kMatrix = 512;      // a side: three of them are 3 MiB
constexpr std::int64_t kStream = 4 << 20;  // numbers, 16 MiB
constexpr int kProductsPerStream = 4;

}  // namespace

BusyNeighbours::BusyNeighbours(int count) {
  try {
    for (int thread = 0; thread < count; ++thread) threads_.emplace_back([this] { work(); });
  } catch (...) {  // the system has no more threads
    stop();
    throw;
  }
  while (num_at_work_ < count) std::this_thread::yield();
}

BusyNeighbours::~BusyNeighbours() { stop(); }

void BusyNeighbours::stop() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

void BusyNeighbours::work() {
  at::get_num_threads();  // libtorch's own setting comes first, then this one stays
  omp_set_num_threads(1);
  const at::NoGradGuard no_grad;
  const at::Tensor factor = at::full({kMatrix, kMatrix}, 1.0 / kMatrix);
  at::Tensor product = at::empty_like(factor);
  at::Tensor stream = at::ones({kStream});
  ++num_at_work_;
  while (!stop_) {
    for (int repeat = 0; repeat < kProductsPerStream; ++repeat) at::mm_out(product, factor, factor);
    stream.neg_();
  }
}

}  // namespace gpipe::detail
