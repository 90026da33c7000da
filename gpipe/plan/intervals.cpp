#include "gpipe/plan/intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "gpipe/text/byte_text.h"
#include "gpipe/text/require.h"

namespace gpipe::detail {
namespace {

double recompute_share(const PartitionOptions& options, int stage) {
  if (!options.recompute_share.empty()) return options.recompute_share[stage];
  return options.recompute ? 1 : 0;
}

double message_seconds(const LinkCosts& link, std::int64_t bytes) {
  return link.latency_seconds + link.transfer_seconds(bytes);
}

// Numbers things of different kinds in the order in which their keys come first.
template <typename Key>
class Kinds {
 public:
  // Whether the stage is the first of its kind.
  bool add(const Key& key) {
    const auto [kind, is_new] = kinds_.emplace(key, static_cast<int>(kinds_.size()));
    of_stage.push_back(kind->second);
    return is_new;
  }

  std::vector<int> of_stage;

 private:
  std::map<Key, int> kinds_;
};

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
    : profile_(profile), options_(options) {
  Kinds<std::pair<double, double>> kinds;
  Kinds<std::pair<double, double>> link_kinds;
  std::vector<int> stage_of_kind;
  std::vector<LinkCosts> links;
  for (int stage = 0; stage < num_stages(); ++stage) {
    if (kinds.add({speed_of(options_.workers, stage), recompute_share(options_, stage)}))
      stage_of_kind.push_back(stage);
    // Nothing is sent behind the last stage.
    const LinkCosts& link = link_behind(std::min(stage, std::max(0, num_stages() - 2)));
    if (link_kinds.add({link.latency_seconds, link.bytes_per_second})) links.push_back(link);
  }
  kind_of_stage_ = std::move(kinds.of_stage);
  link_behind_stage_ = std::move(link_kinds.of_stage);

  // The largest sum of stages' seconds is bounded by every layer on its slowest stage and every message both ways on
  // its slowest link.
  const auto sent_seconds = [&](std::int64_t bytes) {
    double slowest = 0;
    if (num_stages() == 1) return slowest;
    for (const LinkCosts& link : links) slowest = std::max(slowest, message_seconds(link, bytes));
    return slowest;
  };
  double most = 0;
  for (const LayerProfile& layer : profile.layers) {
    double slowest = 0;
    for (const int stage : stage_of_kind) slowest = std::max(slowest, layer_seconds(stage, layer));
    most += slowest;
    most += 2 * sent_seconds(layer.output_bytes);
  }
  for (const SkipProfile& skip : profile.skips) most += 2 * sent_seconds(skip.bytes);
  require(std::isfinite(most),
          "the layers and messages take too many seconds to add up: check the profile, workers and link");
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
  for (const LinkCosts& link : links) {
    const auto sent_ticks = [&](std::int64_t bytes) {
      return num_stages() > 1 ? to_ticks(message_seconds(link, bytes)) : 0;
    };
    LinkTicks& ticks = links_.emplace_back();
    std::vector<Ticks> skips;
    for (const SkipProfile& skip : profile.skips) skips.push_back(sent_ticks(skip.bytes));
    ticks.passing = PassingSkips(profile, skips);
    ticks.boundary.assign(profile.layers.size() + 1, 0);
    for (int boundary = 1; boundary < num_layers(); ++boundary) {
      ticks.boundary[boundary] =
          sent_ticks(profile.layers[boundary - 1].output_bytes) + ticks.passing.crossing(boundary);
    }
  }
}

const LinkCosts& IntervalSeconds::link_behind(int stage) const {
  const bool is_given = !options_.workers.empty() && options_.workers[stage].link_to_next;
  return is_given ? *options_.workers[stage].link_to_next : options_.link;
}

IntervalSeconds::Row IntervalSeconds::row(int stage, int begin) const {
  const std::vector<Ticks>& compute = compute_[kind_of_stage_[stage]];
  const LinkTicks& behind = links_[link_behind_stage_[stage]];
  const LinkTicks& in_front = links_[link_behind_stage_[std::max(0, stage - 1)]];
  return {compute.data(),
          behind.boundary.data(),
          behind.passing.row(begin),
          in_front.passing.row(begin),
          compute[begin],
          options_.backward ? in_front.boundary[begin] : 0,
          options_.backward ? 1 : 0};
}

double IntervalSeconds::seconds(int stage, int begin, int end) const {
  double seconds = 0;
  for (int layer = begin; layer < end; ++layer) seconds += layer_seconds(stage, profile_.layers[layer]);
  const LinkCosts& behind = link_behind(stage);
  const LinkCosts& in_front = link_behind(std::max(0, stage - 1));
  if (end < num_layers()) seconds += message_seconds(behind, profile_.layers[end - 1].output_bytes);
  if (begin > 0 && options_.backward) seconds += message_seconds(in_front, profile_.layers[begin - 1].output_bytes);
  for (const SkipProfile& skip : profile_.skips) {
    const bool stashes = begin <= skip.from && skip.from < end && skip.to >= end;
    const bool pops = begin <= skip.to && skip.to < end && skip.from < begin;
    if (stashes) seconds += message_seconds(behind, skip.bytes);
    if (pops && options_.backward) seconds += message_seconds(in_front, skip.bytes);
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
  return (forwards + (options_.backward ? layer.backward_seconds : 0)) / speed_of(options_.workers, stage);
}

IntervalSplitBytes::IntervalSplitBytes(const Profile& profile, const std::vector<std::int64_t>& input)
    : is_known_(has_deferred_bytes(profile.layers)) {
  if (!is_known_) return;
  std::vector<std::int64_t> input_grad;
  std::vector<std::int64_t> rest_of_input_grad;
  std::vector<std::int64_t> weight_grad;
  for (const LayerProfile& layer : profile.layers) {
    input_grad.push_back(activations_.back() + input_grad_working_bytes(layer));
    weight_grad.push_back(deferred_.back() + weight_grad_working_bytes(layer));
    activations_.push_back(activations_.back() + layer.activation_bytes);
    deferred_.push_back(deferred_.back() + deferred_bytes(layer));
    rest_of_input_grad.push_back(input_grad.back() - deferred_.back());
    output_.push_back(layer.deferred_output_bytes);
  }
  output_.back() = 0;  // there is no next stage to hold the model's output
  std::vector<std::int64_t> grads = input;
  grads.back() = 0;  // that of the loss is one number
  grads_ = RangeMax(std::move(grads));
  input_grad_ = RangeMax(std::move(input_grad));
  rest_of_input_grad_ = RangeMax(std::move(rest_of_input_grad));
  weight_grad_ = RangeMax(std::move(weight_grad));
}

IntervalSplitBytes::Split IntervalSplitBytes::of(const Whole& whole, int begin, int end) const {
  if (!is_known_) return {whole.held, std::max(whole.backward, whole.held), std::max(whole.backward, whole.held)};
  const WideBytes input_grad = WideBytes{input_grad_.of(begin, end)} - activations_[begin] + whole.kept_input;
  if (deferred_[end] == 0) return {0, std::max(input_grad, whole.held), 0};
  if (deferred_[begin] == 0) {  // nothing waits for the stage's input gradients
    const WideBytes deferred = whole.held + grads_.of(begin + 1, end + 1);
    return {deferred, std::max(input_grad, deferred), std::max(whole.backward, deferred)};
  }
  const WideBytes deferred = WideBytes{deferred_[end]} - output_[end] - deferred_[begin] + output_[begin];
  const WideBytes rest = WideBytes{rest_of_input_grad_.of(begin, end)} - activations_[begin] + whole.kept_input;
  const WideBytes weight_grad = WideBytes{weight_grad_.of(begin, end)} - deferred_[begin] + output_[begin];
  return {deferred, std::max({input_grad, rest + deferred_[end] - output_[end], whole.held}),
          std::max(weight_grad, deferred)};
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
  split_ = IntervalSplitBytes(profile, input_);
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
  const WideBytes kept_bytes = WideBytes{kept_[begin]} + passing_.crossing(begin) - passing_.passing(begin, end);
  const WideBytes held_bytes = activations_[end] - activations_[begin] - kept_[end] + kept_bytes;
  const WideBytes forward_bytes = forward_working_bytes(begin, end) + input_bytes;
  const WideBytes backward_bytes = backward_working_bytes(begin, end) + kept_bytes;
  const IntervalSplitBytes::Split split = split_.of({kept_bytes, held_bytes, backward_bytes}, begin, end);
  const std::array<WideBytes, 3> work_bytes = {std::max({forward_bytes, backward_bytes, held_bytes}), split.input_grad,
                                               split.weight_grad};  // by Live::Work
  WideBytes peak = 0;
  for (const Live& held : live) {
    const WideBytes others = held.inputs * input_bytes + held.deferred * split.deferred;
    const WideBytes activations =
        held.activations == 0 ? 0 : (held.activations - 1) * held_bytes + work_bytes[static_cast<int>(held.work)];
    peak = std::max(peak, activations + others);
  }
  return saturated(peak + least_bytes(false, begin, end));
}

std::int64_t IntervalBytes::least_bytes(bool is_at_work, int begin, int end) const {
  const WideBytes trained = WideBytes{1 + std::int64_t{optimizer_slots_}} * (gradients_[end] - gradients_[begin]);
  const WideBytes working = is_at_work ? WideBytes{backward_working_bytes(begin, end)} + kept_[begin] : 0;
  return saturated(trained + (other_statics_[end] - other_statics_[begin]) + working);
}

Shortfall IntervalBytes::least_shortfall(const std::vector<std::vector<Live>>& live,
                                         const std::vector<std::int64_t>& limits) const {
  constexpr Shortfall kNone = {std::numeric_limits<std::int64_t>::max(), 0};
  const int num_stages = static_cast<int>(live.size());
  std::vector<Shortfall> rest(num_layers() + 1, kNone);  // of the stages behind, from each layer on
  rest[num_layers()] = {std::numeric_limits<std::int64_t>::min(), 0};
  for (int stage = num_stages - 1; stage >= 0; --stage) {
    const int last_begin = stage == 0 ? 0 : num_layers() - 1;
    const int last_end = num_layers() - (num_stages - 1 - stage);
    for (int begin = stage; begin <= last_begin; ++begin) {
      Shortfall best = kNone;
      for (int end = begin + 1; end <= last_end; ++end) {
        const Shortfall own = {bytes(live[stage], begin, end) - limits[stage], stage};
        const Shortfall& most = own.missing_bytes >= rest[end].missing_bytes ? own : rest[end];
        if (most.missing_bytes < best.missing_bytes) best = most;
        if (own.missing_bytes >= best.missing_bytes) break;
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

const std::vector<int>& FurthestEnds::of(const std::vector<Live>& live, std::int64_t limit_bytes) {
  Key key = {limit_bytes, {}};
  for (const Live& held : live) {
    key.second.push_back({held.activations, held.inputs, held.deferred, static_cast<int>(held.work)});
  }
  const auto [entry, is_new] = known_.try_emplace(std::move(key));
  std::vector<int>& ends = entry->second;
  for (int begin = 0; is_new && begin < bytes_.num_layers(); ++begin) {
    int fits = begin;
    int too_far = bytes_.num_layers() + 1;
    while (too_far - fits > 1) {
      const int middle = fits + (too_far - fits) / 2;
      (bytes_.bytes(live, begin, middle) <= limit_bytes ? fits : too_far) = middle;
    }
    ends.push_back(fits);
  }
  return ends;
}

}  // namespace gpipe::detail
