#include "gpipe/plan/interval_bytes.h"

#include <algorithm>
#include <utility>

#include "gpipe/text/byte_text.h"

namespace gpipe {
namespace {

// For each begin, the largest end for which fits(begin, end); the begin itself if there is none.
template <typename Fits>
std::vector<int> furthest(int num_layers, const Fits& does_fit) {
  std::vector<int> ends(num_layers);
  for (int begin = 0; begin < num_layers; ++begin) {
    int fits = begin;
    int too_far = num_layers + 1;
    while (too_far - fits > 1) {
      const int middle = fits + (too_far - fits) / 2;
      (does_fit(begin, middle) ? fits : too_far) = middle;
    }
    ends[begin] = fits;
  }
  return ends;
}

}  // namespace

IntervalBytes::IntervalBytes(const Profile& profile, int optimizer_slots) : optimizer_slots_(optimizer_slots) {
  gradients_ = {0};
  other_statics_ = {0};
  activations_ = {0};
  input_ = {0};
  kept_ = {0};
  std::vector<std::int64_t> skips;
  for (const SkipProfile& skip : profile.skips) skips.push_back(skip.bytes);
  passing_ = PassingSkips(profile, skips);
  std::vector<std::int64_t> forward;
  std::vector<std::int64_t> backward;
  for (const LayerProfile& layer : profile.layers) {
    const int index = static_cast<int>(first_working_.size());
    first_working_.push_back(gpipe::forward_working_bytes(profile.layers, index, index));
    forward.push_back(activations_.back() + gpipe::forward_working_bytes(layer));
    backward.push_back(activations_.back() + gpipe::backward_working_bytes(layer));
    gradients_.push_back(gradients_.back() + gradient_bytes(layer));
    other_statics_.push_back(other_statics_.back() + layer.parameter_bytes + layer.buffer_bytes);
    activations_.push_back(activations_.back() + layer.activation_bytes);
    input_.push_back(layer.output_bytes + passing_.crossing(static_cast<int>(input_.size())));
    kept_.push_back(layer.kept_output_bytes);
  }
  kept_.back() = 0;  // there is no next stage to hold the model's output
  forward_working_ = RangeMax(std::move(forward));
  backward_working_ = RangeMax(std::move(backward));
}

std::int64_t IntervalBytes::forward_working_bytes(int begin, int end) const {
  const std::int64_t first = first_working_[begin];
  if (end - begin < 2) return first;
  return std::max(first, forward_working_.of(begin + 1, end) - activations_[begin]);
}

std::int64_t IntervalBytes::backward_working_bytes(int begin, int end) const {
  return backward_working_.of(begin, end) - activations_[begin];
}

std::int64_t IntervalBytes::bytes(const std::vector<Live>& live, int begin, int end) const {
  const WideBytes input_bytes = input_[begin] - passing_.passing(begin, end);
  const WideBytes skip_bytes = passing_.crossing(begin) - passing_.passing(begin, end);
  const WideBytes held_bytes = activations_[end] - activations_[begin] - kept_[end] + kept_[begin] + skip_bytes;
  const WideBytes forward_bytes = forward_working_bytes(begin, end) + input_bytes;
  const WideBytes backward_bytes = WideBytes{backward_working_bytes(begin, end)} + kept_[begin] + skip_bytes;
  const WideBytes at_work_bytes = std::max({forward_bytes, backward_bytes, held_bytes});
  WideBytes peak = 0;
  for (const Live& held : live) {
    const WideBytes activations = held.activations == 0 ? 0 : (held.activations - 1) * held_bytes + at_work_bytes;
    peak = std::max(peak, activations + held.inputs * input_bytes);
  }
  return saturated(peak + least_bytes(false, begin, end));
}

std::int64_t IntervalBytes::least_bytes(bool is_at_work, int begin, int end) const {
  const WideBytes trained = WideBytes{1 + std::int64_t{optimizer_slots_}} * (gradients_[end] - gradients_[begin]);
  const WideBytes working = is_at_work ? WideBytes{backward_working_bytes(begin, end)} + kept_[begin] : 0;
  return saturated(trained + (other_statics_[end] - other_statics_[begin]) + working);
}

std::vector<int> IntervalBytes::furthest_ends(const std::vector<Live>& live, std::int64_t limit_bytes) const {
  return furthest(num_layers(), [&](int begin, int end) { return bytes(live, begin, end) <= limit_bytes; });
}

std::vector<int> IntervalBytes::furthest_possible_ends(bool is_at_work, std::int64_t limit_bytes) const {
  return furthest(num_layers(), [&](int begin, int end) { return least_bytes(is_at_work, begin, end) <= limit_bytes; });
}

const std::vector<int>& FurthestEnds::of(const std::vector<Live>& live) {
  std::vector<std::pair<int, int>> key;
  for (const Live& held : live) key.emplace_back(held.activations, held.inputs);
  const auto [entry, is_new] = known_.try_emplace(std::move(key));
  if (is_new) entry->second = bytes_.furthest_ends(live, limit_bytes_);
  return entry->second;
}

}  // namespace gpipe
