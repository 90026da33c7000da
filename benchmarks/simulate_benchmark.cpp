// How fast the simulator and the proof are, and how they grow: actions per second for 1F1B from 2 thousand to 8 million
// actions, M = 4K. `items_per_second` should stay about the same down the table.
#include <benchmark/benchmark.h>

#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/simulate.h"

namespace {

void count_actions(benchmark::State& state, const gpipe::Schedule& schedule) {
  state.SetItemsProcessed(state.iterations() * schedule.num_actions());
  state.counters["actions"] = static_cast<double>(schedule.num_actions());
}

void simulate_1f1b(benchmark::State& state) {
  const int num_workers = static_cast<int>(state.range(0));
  const gpipe::Schedule schedule = gpipe::schedules::one_f_one_b(num_workers, 4 * num_workers);
  const gpipe::Costs costs = gpipe::uniform_costs(schedule);
  for (auto _ : state) benchmark::DoNotOptimize(gpipe::simulate(schedule, costs).makespan_seconds);
  count_actions(state, schedule);
}
BENCHMARK(simulate_1f1b)->RangeMultiplier(2)->Range(16, 1024)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();

void prove_1f1b(benchmark::State& state) {
  const int num_workers = static_cast<int>(state.range(0));
  const gpipe::Schedule schedule = gpipe::schedules::one_f_one_b(num_workers, 4 * num_workers);
  gpipe::ValidateOptions options;
  options.compute_capacities = false;
  for (auto _ : state) benchmark::DoNotOptimize(gpipe::validate(schedule, options).canonical);
  count_actions(state, schedule);
}
BENCHMARK(prove_1f1b)->RangeMultiplier(4)->Range(16, 1024)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();

void simulate_each(benchmark::State& state) {
  const gpipe::ScheduleInfo& info = gpipe::schedule_registry()[state.range(0)];
  const gpipe::Schedule schedule = gpipe::make_schedule(info.name, 64, 512);
  const gpipe::Costs costs = gpipe::uniform_costs(schedule);
  for (auto _ : state) benchmark::DoNotOptimize(gpipe::simulate(schedule, costs).makespan_seconds);
  count_actions(state, schedule);
  state.SetLabel(info.name);
}
BENCHMARK(simulate_each)->DenseRange(0, 9)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime();

}  // namespace
