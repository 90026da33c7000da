#include "gpipe/model/dropout.h"

#include <ATen/ATen.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"

namespace gpipe::nn {
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

std::uint64_t mask_key(const LayerRun& run, int call) {
  const std::uint64_t place = static_cast<std::uint64_t>(call) << 32 | static_cast<std::uint32_t>(run.layer);
  at::Philox4_32 engine(run.seed, place, static_cast<std::uint64_t>(run.step));
  const std::uint64_t low = engine();
  return static_cast<std::uint64_t>(engine()) << 32 | low;
}

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

// Zero or `scale` for each of the sample's elements.
template <typename Scalar>
void fill_sample(Scalar* mask, std::int64_t size, std::uint64_t key, std::uint64_t sample, double p) {
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

// Of the input's shape and type, on its device.
at::Tensor make_mask(const at::Tensor& input, const DropoutOptions& options, const LayerRun& run, int call) {
  if (input.is_meta()) return at::empty_like(input, at::MemoryFormat::Contiguous);
  // A mask of one sample per row first; the samples' dimension goes where it belongs afterwards.
  at::IntArrayRef sizes = input.sizes();
  std::vector<std::int64_t> shape(sizes.begin(), sizes.end());
  const std::int64_t sample_dim = options.sample_dim();
  std::rotate(shape.begin(), shape.begin() + sample_dim, shape.begin() + sample_dim + 1);
  const bool is_double = input.scalar_type() == at::kDouble;
  const at::Tensor mask = at::empty(shape, at::TensorOptions().dtype(is_double ? at::kDouble : at::kFloat));
  const std::int64_t size = mask.numel() / shape[0];
  const std::uint64_t key = mask_key(run, call);
  for (std::int64_t row = 0; row < shape[0]; ++row) {
    const auto sample = static_cast<std::uint64_t>(run.first_sample + row);
    if (is_double) {
      fill_sample(mask.data_ptr<double>() + row * size, size, key, sample, options.p());
    } else {
      fill_sample(mask.data_ptr<float>() + row * size, size, key, sample, options.p());
    }
  }
  return at::movedim(mask, 0, sample_dim).to(input.options().requires_grad(false));
}

}  // namespace

DropoutImpl::DropoutImpl(const DropoutOptions& options_) : options(options_) { DropoutImpl::reset(); }

void DropoutImpl::reset() {
  if (options.p() >= 0 && options.p() <= 1) return;
  throw InvalidArgument(fmt::format("a dropout probability must be between 0 and 1, got {}", options.p()));
}

at::Tensor DropoutImpl::forward(const at::Tensor& input) {
  if (!is_training()) return input;
  const LayerRun* run = LayerScope::current();
  if (run == nullptr) return at::dropout(input, options.p(), /*train=*/true);
  if (!input.is_floating_point()) {
    throw InvalidArgument(
        fmt::format("dropout takes floating-point tensors, got {}", c10::toString(input.scalar_type())));
  }
  if (options.sample_dim() < 0 || options.sample_dim() >= input.dim()) {
    throw InvalidArgument(fmt::format("dropout by samples of dimension {}, got a tensor of {} dimensions",
                                      options.sample_dim(), input.dim()));
  }
  const int call = LayerScope::next_call();
  if (options.p() == 0 || input.numel() == 0) return input;
  return input * make_mask(input, options, *run, call);
}

void DropoutImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("gpipe::nn::Dropout(p={}, sample_dim={})", options.p(), options.sample_dim());
}

}  // namespace gpipe::nn
