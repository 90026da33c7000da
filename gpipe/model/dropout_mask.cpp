#include "gpipe/model/dropout_mask.h"

#include <algorithm>

namespace gpipe::detail {
namespace {

// Note [Dropout mask]
// ~~~~~~~~~~~~~~~~~~~
// Philox4x32-10 turns a key and a counter into four words, without any state:
//
//   key(seed; step, call, layer)  =  the first two words of Philox under the key `seed`
//   word(element)                 =  Philox under that key, counter (block, sample)
//
// kLanes counters are computed side by side, so that the compiler can use vector instructions. Their words go to a
// group of 4 * kLanes neighbours, word by word: element e of a sample takes word (e / kLanes) % 4 of block e / (4 *
// kLanes) * kLanes + e % kLanes. Only integers are involved: every machine makes the same mask.
constexpr int kLanes = 16;
constexpr int kGroup = 4 * kLanes;

void draw_group(std::uint64_t key, std::uint64_t sample, std::uint64_t first_block, std::uint32_t (&words)[kGroup]) {
  std::uint32_t* const w0 = words;
  std::uint32_t* const w1 = words + kLanes;
  std::uint32_t* const w2 = words + 2 * kLanes;
  std::uint32_t* const w3 = words + 3 * kLanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::uint64_t block = first_block + lane;
    w0[lane] = static_cast<std::uint32_t>(block);
    w1[lane] = static_cast<std::uint32_t>(block >> 32);
    w2[lane] = static_cast<std::uint32_t>(sample);
    w3[lane] = static_cast<std::uint32_t>(sample >> 32);
  }
  auto key_low = static_cast<std::uint32_t>(key);
  auto key_high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53} * w0[lane];
      const std::uint64_t product2 = std::uint64_t{0xCD9E8D57} * w2[lane];
      w0[lane] = static_cast<std::uint32_t>(product2 >> 32) ^ w1[lane] ^ key_low;
      w1[lane] = static_cast<std::uint32_t>(product2);
      w2[lane] = static_cast<std::uint32_t>(product0 >> 32) ^ w3[lane] ^ key_high;
      w3[lane] = static_cast<std::uint32_t>(product0);
    }
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
}

template <typename Scalar>
void fill(Scalar* mask, std::int64_t size, std::uint64_t key, std::uint64_t sample, double p) {
  const auto scale = static_cast<Scalar>(p < 1 ? 1 / (1 - p) : 0);
  const auto dropped = static_cast<std::uint64_t>(p * 4294967296.0);  // of the 2^32 words, those that drop
  const auto last_dropped = static_cast<std::uint32_t>(dropped - 1);
  const Scalar kept_by_all = dropped == 0 ? scale : Scalar(0);
  std::uint32_t words[kGroup];
  for (std::int64_t first = 0; first < size; first += kGroup) {
    draw_group(key, sample, static_cast<std::uint64_t>(first / 4), words);
    const int count = static_cast<int>(std::min<std::int64_t>(kGroup, size - first));
    for (int index = 0; index < count; ++index) {
      mask[first + index] = words[index] > last_dropped ? scale : kept_by_all;
    }
  }
}

}  // namespace

void fill_sample(float* mask, std::int64_t size, std::uint64_t key, std::uint64_t sample, double p) {
  fill(mask, size, key, sample, p);
}

void fill_sample(double* mask, std::int64_t size, std::uint64_t key, std::uint64_t sample, double p) {
  fill(mask, size, key, sample, p);
}

}  // namespace gpipe::detail
