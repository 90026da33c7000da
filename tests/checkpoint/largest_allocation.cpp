#include "largest_allocation.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> largest{0};

}  // namespace

namespace gpipe {

void reset_largest_allocation() { largest = 0; }
std::size_t largest_allocation() { return largest; }

}  // namespace gpipe

void* operator new(std::size_t size) {
  std::size_t before = largest;
  while (size > before && !largest.compare_exchange_weak(before, size)) {
  }
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
