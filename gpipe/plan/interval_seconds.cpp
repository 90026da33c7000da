#include "gpipe/plan/interval_seconds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "gpipe/error.h"

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

IntervalSeconds::IntervalSeconds(const Profile& profile, const PartitionOptions& options)
    : profile_(profile), options_(options) {
  find_kinds();
  choose_tick();
  add_compute();
  add_messages();
}

IntervalSeconds::Row IntervalSeconds::row(int stage, int begin) const {
  const std::vector<Ticks>& compute = compute_[kind_of_stage_[stage]];
  Row row;
  row.compute_ = compute.data();
  row.boundary_ = boundary_.data();
  row.passing_ = passing_.row(begin);
  row.compute_begin_ = compute[begin];
  row.sent_back_ = options_.backward ? boundary_[begin] : 0;
  row.directions_ = options_.backward ? 2 : 1;
  return row;
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

// The largest sum of stages' seconds is bounded by every layer on its slowest stage and every message both ways.
void IntervalSeconds::choose_tick() {
  double most = 0;
  for (const LayerProfile& layer : profile_.layers) {
    double slowest = 0;
    for (const int stage : stage_of_kind_) slowest = std::max(slowest, layer_seconds(stage, layer));
    most += slowest;
    if (num_stages() > 1) most += 2 * message_seconds(layer.output_bytes);
  }
  if (num_stages() > 1) {
    for (const SkipProfile& skip : profile_.skips) most += 2 * message_seconds(skip.bytes);
  }
  if (!std::isfinite(most)) {
    throw InvalidArgument(
        "the layers and messages take too many seconds to add up: check the profile, worker_speed and link");
  }
  constexpr int kTickBits = 60;
  int exponent = 0;
  std::frexp(most, &exponent);
  tick_exponent_ = exponent - kTickBits;
}

Ticks IntervalSeconds::to_ticks(double seconds) const { return std::llround(std::ldexp(seconds, -tick_exponent_)); }

void IntervalSeconds::find_kinds() {
  std::map<std::pair<double, double>, int> kinds;
  for (int stage = 0; stage < num_stages(); ++stage) {
    const std::pair<double, double> costs = {worker_speed(options_, stage), recompute_share(options_, stage)};
    const auto [kind, is_new] = kinds.emplace(costs, static_cast<int>(stage_of_kind_.size()));
    kind_of_stage_.push_back(kind->second);
    if (is_new) stage_of_kind_.push_back(stage);
  }
}

void IntervalSeconds::add_compute() {
  for (const int stage : stage_of_kind_) {
    std::vector<Ticks> sums = {0};
    for (const LayerProfile& layer : profile_.layers)
      sums.push_back(sums.back() + to_ticks(layer_seconds(stage, layer)));
    compute_.push_back(std::move(sums));
  }
}

void IntervalSeconds::add_messages() {
  boundary_.assign(num_layers() + 1, 0);
  std::vector<Ticks> skips(profile_.skips.size(), 0);
  if (num_stages() > 1) {
    for (std::size_t skip = 0; skip < skips.size(); ++skip) {
      skips[skip] = to_ticks(message_seconds(profile_.skips[skip].bytes));
    }
    for (int boundary = 1; boundary < num_layers(); ++boundary) {
      boundary_[boundary] = to_ticks(message_seconds(profile_.layers[boundary - 1].output_bytes));
    }
  }
  passing_ = PassingSkips(profile_, skips);
  for (int boundary = 1; boundary < num_layers(); ++boundary) boundary_[boundary] += passing_.crossing(boundary);
}

}  // namespace gpipe
