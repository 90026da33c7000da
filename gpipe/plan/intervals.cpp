#include "gpipe/plan/intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "gpipe/text/byte_text.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

double recompute_share(const PartitionOptions& options, int stage) {
  if (!options.recompute_share.empty()) return options.recompute_share[stage];
  return options.recompute ? 1 : 0;
}

double worker_speed(const PartitionOptions& options, int stage) {
  return options.worker_speed.empty() ? 1 : options.worker_speed[stage];
}

}  // namespace

PassingSkips::PassingSkips(const Profile& profile, const std::vector<std::int64_t>& weights) {
  const std::size_t num_layers = profile.layers.size();
  crossing_.assign(num_layers + 1, 0);
  if (std::all_of(weights.begin(), weights.end(), [](std::int64_t weight) { return weight == 0; })) {
    no_skips_.assign(num_layers + 1, 0);
    return;
  }
  std::vector<std::vector<std::size_t>> skips_from(num_layers);
  for (std::size_t skip = 0; skip < profile.skips.size(); ++skip) skips_from[profile.skips[skip].from].push_back(skip);

  passing_.resize((num_layers + 1) * (num_layers + 2) / 2);
  std::vector<std::int64_t> popped_at(num_layers + 1, 0);  // by layer, of the skips stashed before `begin`
  for (std::size_t begin = 0; begin <= num_layers; ++begin) {
    std::int64_t weight = 0;
    for (std::size_t end = num_layers + 1; end-- > begin;) {
      weight += popped_at[end];
      passing_[offset(begin) + end - begin] = weight;
    }
    crossing_[begin] = weight;
    if (begin == num_layers) break;
    for (const std::size_t skip : skips_from[begin]) popped_at[profile.skips[skip].to] += weights[skip];
  }
}

IntervalSeconds::IntervalSeconds(const Profile& profile, const PartitionOptions& options)
    : profile_(profile), options_(options), boundary_(profile.layers.size() + 1, 0) {
  std::map<std::pair<double, double>, int> kinds;
  std::vector<int> stage_of_kind;
  for (int stage = 0; stage < num_stages(); ++stage) {
    const std::pair<double, double> costs = {worker_speed(options_, stage), recompute_share(options_, stage)};
    const auto [kind, is_new] = kinds.emplace(costs, static_cast<int>(stage_of_kind.size()));
    kind_of_stage_.push_back(kind->second);
    if (is_new) stage_of_kind.push_back(stage);
  }

  // The largest sum of stages' seconds is bounded by every layer on its slowest stage and every message both ways.
  const auto sent_seconds = [&](std::int64_t bytes) { return num_stages() > 1 ? message_seconds(bytes) : 0; };
  double most = 0;
  for (const LayerProfile& layer : profile.layers) {
    double slowest = 0;
    for (const int stage : stage_of_kind) slowest = std::max(slowest, layer_seconds(stage, layer));
    most += slowest;
    most += 2 * sent_seconds(layer.output_bytes);
  }
  for (const SkipProfile& skip : profile.skips) most += 2 * sent_seconds(skip.bytes);
  require(std::isfinite(most),
          "the layers and messages take too many seconds to add up: check the profile, worker_speed and link");
  constexpr int kTickBits = 60;
  int exponent = 0;
  std::frexp(most, &exponent);
  const auto to_ticks = [&](double seconds) -> Ticks {
    return std::llround(std::ldexp(seconds, kTickBits - exponent));
  };

  for (const int stage : stage_of_kind) {
    std::vector<Ticks>& sums = compute_.emplace_back(1, 0);
    for (const LayerProfile& layer : profile.layers) {
      sums.push_back(sums.back() + to_ticks(layer_seconds(stage, layer)));
    }
  }
  std::vector<Ticks> skips;
  for (const SkipProfile& skip : profile.skips) skips.push_back(to_ticks(sent_seconds(skip.bytes)));
  passing_ = PassingSkips(profile, skips);
  for (int boundary = 1; boundary < num_layers(); ++boundary) {
    boundary_[boundary] =
        to_ticks(sent_seconds(profile.layers[boundary - 1].output_bytes)) + passing_.crossing(boundary);
  }
}

IntervalSeconds::Row IntervalSeconds::row(int stage, int begin) const {
  const std::vector<Ticks>& compute = compute_[kind_of_stage_[stage]];
  return {compute.data(),
          boundary_.data(),
          passing_.row(begin),
          compute[begin],
          options_.backward ? boundary_[begin] : 0,
          options_.backward ? 2 : 1};
}

double IntervalSeconds::seconds(int stage, int begin, int end) const {
  double seconds = 0;
  for (int layer = begin; layer < end; ++layer) seconds += layer_seconds(stage, profile_.layers[layer]);
  if (end < num_layers()) seconds += message_seconds(profile_.layers[end - 1].output_bytes);
  if (begin > 0 && options_.backward) seconds += message_seconds(profile_.layers[begin - 1].output_bytes);
  for (const SkipProfile& skip : profile_.skips) {
    const bool stashes = begin <= skip.from && skip.from < end && skip.to >= end;
    const bool pops = begin <= skip.to && skip.to < end && skip.from < begin;
    if (stashes || (pops && options_.backward)) seconds += message_seconds(skip.bytes);
  }
  return seconds;
}

Ticks IntervalSeconds::least_sum() const {
  Ticks sum = 0;
  for (int layer = 0; layer < num_layers(); ++layer) {
    Ticks least = compute_[0][layer + 1] - compute_[0][layer];
    for (const std::vector<Ticks>& kind : compute_) least = std::min(least, kind[layer + 1] - kind[layer]);
    sum += least;
  }
  return sum;
}

double IntervalSeconds::layer_seconds(int stage, const LayerProfile& layer) const {
  const double forwards = (1 + recompute_share(options_, stage)) * layer.forward_seconds;
  return (forwards + (options_.backward ? layer.backward_seconds : 0)) / worker_speed(options_, stage);
}

double IntervalSeconds::message_seconds(std::int64_t bytes) const {
  return options_.link.latency_seconds + options_.link.transfer_seconds(bytes);
}

IntervalBytes::IntervalBytes(const Profile& profile, int optimizer_slots) : optimizer_slots_(optimizer_slots) {
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

std::int64_t IntervalBytes::least_fullest_bytes(const std::vector<std::vector<Live>>& live) const {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const int num_stages = static_cast<int>(live.size());
  std::vector<std::int64_t> rest(num_layers() + 1, kNone);  // of the stages behind, from each layer on
  rest[num_layers()] = 0;
  for (int stage = num_stages - 1; stage >= 0; --stage) {
    const int last_begin = stage == 0 ? 0 : num_layers() - 1;
    const int last_end = num_layers() - (num_stages - 1 - stage);
    for (int begin = stage; begin <= last_begin; ++begin) {
      std::int64_t best = kNone;
      for (int end = begin + 1; end <= last_end; ++end) {
        const std::int64_t own = bytes(live[stage], begin, end);
        best = std::min(best, std::max(own, rest[end]));
        if (own >= best) break;
      }
      rest[begin] = best;
    }
    rest[num_layers()] = kNone;
  }
  return rest[0];
}

int IntervalBytes::least_num_stages(bool is_at_work, std::int64_t limit_bytes) const {
  int num_stages = 0;
  for (int begin = 0, end = 0; begin < num_layers(); begin = end, ++num_stages) {
    while (end < num_layers() && least_bytes(is_at_work, begin, end + 1) <= limit_bytes) ++end;
    if (end == begin) return 0;
  }
  return num_stages;
}

const std::vector<int>& FurthestEnds::of(const std::vector<Live>& live) {
  std::vector<std::pair<int, int>> key;
  for (const Live& held : live) key.emplace_back(held.activations, held.inputs);
  const auto [entry, is_new] = known_.try_emplace(std::move(key));
  std::vector<int>& ends = entry->second;
  for (int begin = 0; is_new && begin < bytes_.num_layers(); ++begin) {
    int fits = begin;
    int too_far = bytes_.num_layers() + 1;
    while (too_far - fits > 1) {
      const int middle = fits + (too_far - fits) / 2;
      (bytes_.bytes(live, begin, middle) <= limit_bytes_ ? fits : too_far) = middle;
    }
    ends.push_back(fits);
  }
  return ends;
}

}  // namespace gpipe
