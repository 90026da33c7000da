#include "gpipe/plan/interval_bytes.h"

#include <algorithm>
#include <limits>

namespace gpipe {
namespace {

__extension__ using Int128 = __int128;

}  // namespace

IntervalBytes::IntervalBytes(const Profile& profile, int optimizer_slots) : optimizer_slots_(optimizer_slots) {
  parameters_ = {0};
  activations_ = {0};
  input_ = {0};
  std::vector<std::int64_t> skips;
  for (const SkipProfile& skip : profile.skips) skips.push_back(skip.bytes);
  passing_ = PassingSkips(profile, skips);
  for (const LayerProfile& layer : profile.layers) {
    parameters_.push_back(parameters_.back() + layer.parameter_bytes);
    activations_.push_back(activations_.back() + layer.activation_bytes);
    input_.push_back(layer.output_bytes + passing_.crossing(static_cast<int>(input_.size())));
  }
}

std::int64_t IntervalBytes::bytes(const std::vector<Live>& live, int begin, int end) const {
  const Int128 activation_bytes = activations_[end] - activations_[begin];
  const Int128 input_bytes = input_[begin] - passing_.passing(begin, end);
  Int128 peak = 0;
  for (const Live& held : live) peak = std::max(peak, held.activations * activation_bytes + held.inputs * input_bytes);
  const Int128 weights = Int128{2 + std::int64_t{optimizer_slots_}} * (parameters_[end] - parameters_[begin]);
  return static_cast<std::int64_t>(std::min<Int128>(weights + peak, std::numeric_limits<std::int64_t>::max()));
}

std::vector<int> IntervalBytes::furthest_ends(const std::vector<Live>& live, std::int64_t limit_bytes) const {
  std::vector<int> ends(num_layers());
  for (int begin = 0; begin < num_layers(); ++begin) {
    int fits = begin;
    int too_far = num_layers() + 1;
    while (too_far - fits > 1) {
      const int middle = fits + (too_far - fits) / 2;
      (bytes(live, begin, middle) <= limit_bytes ? fits : too_far) = middle;
    }
    ends[begin] = fits;
  }
  return ends;
}

const std::vector<int>& FurthestEnds::of(const std::vector<Live>& live) {
  std::vector<std::pair<int, int>> key;
  for (const Live& held : live) key.emplace_back(held.activations, held.inputs);
  const auto [entry, is_new] = known_.try_emplace(std::move(key));
  if (is_new) entry->second = bytes_.furthest_ends(live, limit_bytes_);
  return entry->second;
}

}  // namespace gpipe
