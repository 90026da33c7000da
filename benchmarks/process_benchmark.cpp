// Two processes against two threads, and what of the messages between them is not hidden behind the work.
//
//   gpipe launch -n 2 -- process_benchmark [rounds] [bytes a second]      default: 9 rounds, a link that takes no time
//
// On the Transformer of 8 blocks (see bench_transformer.h), K = 2, M = 8, 1f1b, batch 32. Every round runs one step on
// both processes and then one on two threads of the first, while the second one waits; the median ratio counts.
//
// With the bytes a second of the link between the two (scripts/limited-link makes one that is slow) the simulator
// predicts how much slower the step becomes: from the seconds that each stage's actions take in this very run, with
// that link and without.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/execute/freed_memory.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/simulate.h"
#include "train/bench_transformer.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kNumStages = 2;
constexpr int kNumMicroBatches = 8;
constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kMessageBytes = kBatch / kNumMicroBatches * kSequence * kWidth * 4;

Pipeline make_pipeline(std::shared_ptr<Peers> peers) {
  torch::manual_seed(1);
  return Pipeline(make_transformer(), PipelineOptions(kNumStages)
                                          .num_micro_batches(kNumMicroBatches)
                                          .balance({kNumBlocks / 2 + 1, kNumBlocks / 2 + 1})
                                          .peers(std::move(peers)));
}

// What the actions of each stage took, on the mean of a step.
Costs measured_costs(const Timeline& timeline) {
  Costs costs;
  costs.stages.resize(timeline.num_stages);
  std::vector<double> forward(timeline.num_stages);
  std::vector<double> backward(timeline.num_stages);
  for (const WorkerTimeline& worker : timeline.workers) {
    for (const Span& span : worker.spans) {
      auto& sum = span.action.kind == ActionKind::kForward ? forward : backward;
      sum[span.action.stage] += span.end_seconds - span.start_seconds;
    }
  }
  for (int stage = 0; stage < timeline.num_stages; ++stage) {
    costs.stages[stage].forward_seconds = forward[stage] / kNumMicroBatches;
    costs.stages[stage].backward_seconds = backward[stage] / kNumMicroBatches;
    costs.stages[stage].output_bytes = kMessageBytes;
  }
  return costs;
}

double simulated_step(Costs costs, double bytes_per_second) {
  costs.link.bytes_per_second = bytes_per_second;
  return simulate(make_schedule("1f1b", kNumStages, kNumMicroBatches), costs).makespan_seconds;
}

int run(int rounds, double bytes_per_second) {
  constexpr double kFree = std::numeric_limits<double>::infinity();
  const World world = read_world();
  if (world.size != kNumStages) {
    fmt::print(stderr, "process_benchmark needs {} processes: gpipe launch -n {} -- process_benchmark\n", kNumStages,
               kNumStages);
    return 2;
  }
  torch::manual_seed(0);
  const at::Tensor input = torch::randint(kNumTokens, {kBatch, kSequence}, torch::kLong);
  const at::Tensor target = torch::randint(kNumTokens, {kBatch, kSequence}, torch::kLong);
  Pipeline processes = make_pipeline(nullptr);
  Pipeline threads = make_pipeline(no_peers());
  std::vector<double> process_seconds;
  std::vector<double> thread_seconds;
  std::vector<double> ratios;
  std::vector<double> not_hidden;
  std::vector<double> predicted;
  for (int round = -1; round < rounds; ++round) {
    const Timeline apart = processes->train_step(input, target, &token_loss).timeline;
    if (world.rank != 0) continue;
    const Timeline together = threads->train_step(input, target, &token_loss).timeline;
    if (round < 0) continue;
    const double free_step = simulated_step(measured_costs(apart), kFree);
    process_seconds.push_back(apart.makespan_seconds);
    thread_seconds.push_back(together.makespan_seconds);
    ratios.push_back(apart.makespan_seconds / together.makespan_seconds);
    not_hidden.push_back(1 - free_step / apart.makespan_seconds);
    predicted.push_back(simulated_step(measured_costs(apart), bytes_per_second) / free_step);
  }
  if (world.rank != 0) return 0;
  fmt::print("K = {}, M = {}, 1f1b; medians of {} rounds\n\n", kNumStages, kNumMicroBatches, rounds);
  fmt::print("step, 2 processes                 {:.3f} s\n", median(process_seconds));
  fmt::print("step, 2 threads                   {:.3f} s\n", median(thread_seconds));
  fmt::print("processes / threads               {:.3f}\n", median(ratios));
  fmt::print("messages not hidden, of the step  {:.1f} %\n", 100 * median(not_hidden));
  if (bytes_per_second != kFree) {
    fmt::print("slower by, predicted              {:.3f}  at {:.3g} bytes a second\n", median(predicted),
               bytes_per_second);
    fmt::print("predicted / measured              {:.3f}\n", median(predicted) / median(ratios));
  }
  return 0;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  const double bytes_per_second = argc > 2 ? std::atof(argv[2]) : std::numeric_limits<double>::infinity();
  gpipe::keep_freed_memory();
  at::set_num_threads(1);
  return gpipe::benchmarks::run(rounds, bytes_per_second);
}
