// The exact partition of 1,000 layers into 64 stages, with and without communication cost and a memory limit.
#include <benchmark/benchmark.h>

#include <random>

#include "gpipe/plan/partition.h"

namespace {

gpipe::Profile random_profile(int num_layers) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> seconds(0.5, 2);
  gpipe::Profile profile;
  for (int layer = 0; layer < num_layers; ++layer) {
    gpipe::LayerProfile entry;
    entry.name = "layer" + std::to_string(layer);
    entry.forward_seconds = seconds(random);
    entry.backward_seconds = 2 * seconds(random);
    entry.parameter_bytes = 1000;
    entry.activation_bytes = 100;
    entry.output_bytes = static_cast<std::int64_t>(100 * seconds(random));
    profile.layers.push_back(entry);
  }
  return profile;
}

void partition(benchmark::State& state, bool communication, bool memory, gpipe::Objective objective) {
  const gpipe::Profile profile = random_profile(1000);
  gpipe::PartitionOptions options;
  options.num_stages = 64;
  options.num_micro_batches = 256;
  options.objective = objective;
  if (communication) options.link = {1e-3, 1000};
  if (memory) options.memory_limit_bytes = 80000;
  for (auto _ : state) benchmark::DoNotOptimize(gpipe::partition(profile, options).makespan_seconds);
}
BENCHMARK_CAPTURE(partition, makespan, false, false, gpipe::Objective::kMakespan)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(partition, makespan_communication, true, false, gpipe::Objective::kMakespan)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(partition, makespan_communication_memory, true, true, gpipe::Objective::kMakespan)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(partition, slowest_stage, false, false, gpipe::Objective::kSlowestStage)
    ->Unit(benchmark::kMillisecond);

}  // namespace
