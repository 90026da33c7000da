// Random draws that are a function of a key, and of nothing else: the same on every machine, in every thread and order.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace gpipe::data {

// Spreads every bit of `bits` over all of them; one to one. The finalizer of SplitMix64.
constexpr std::uint64_t mixed_bits(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

// SplitMix64, started from a key such as (seed, epoch, sample). Thread-compatible.
class Random {
 public:
  explicit Random(std::initializer_list<std::uint64_t> key) {
    for (const std::uint64_t part : key) state_ = mixed_bits(state_ + kStep) ^ mixed_bits(part + kStep);
  }

  std::uint64_t bits() { return mixed_bits(state_ += kStep); }

  // From 0 to end - 1, each as likely as the others. REQUIRES: end >= 1.
  std::uint64_t below(std::uint64_t end) {
    const std::uint64_t num_left_over = (0 - end) % end;  // 2^64 mod end: these would make the first ones likelier
    for (;;) {
      const std::uint64_t drawn = bits();
      if (drawn >= num_left_over) return drawn % end;
    }
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;
  std::uint64_t state_ = 0;
};

}  // namespace gpipe::data
