// Two replicas of a pipeline of one stage: how much of the adding up of their gradients hides behind the backward.
//
//   gpipe launch -n 2 --replicas 2 -- replica_benchmark [rounds]      default: 9 rounds
//
// On the Transformer of 8 blocks (see bench_transformer.h), M = 8, batch 32, half of it each. What a step takes after
// its last action is not hidden. The first step of a pipeline adds up nothing before its last action: that is all there
// is to hide.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/execute/freed_memory.h"
#include "gpipe/gpipe.h"
#include "train/bench_transformer.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kNumReplicas = 2;
constexpr int kNumMicroBatches = 8;
constexpr std::int64_t kBatch = 32;

struct Times {
  double step_seconds = 0;
  double seconds_after = 0;  // its last action
};

Times take_step(Pipeline& pipeline, const at::Tensor& input, const at::Tensor& target) {
  const auto start = std::chrono::steady_clock::now();
  const Timeline timeline = pipeline->train_step(input, target, &token_loss).timeline;
  Times times;
  times.step_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  times.seconds_after = times.step_seconds - timeline.makespan_seconds;
  return times;
}

int run(int rounds) {
  const World world = read_world();
  if (world.size != kNumReplicas || world.num_replicas != kNumReplicas) {
    fmt::print(stderr, "replica_benchmark needs {} replicas: gpipe launch -n {} --replicas {} -- replica_benchmark\n",
               kNumReplicas, kNumReplicas, kNumReplicas);
    return 2;
  }
  torch::manual_seed(0);
  const at::Tensor input = replica_share(torch::randint(kNumTokens, {kBatch, kSequence}, torch::kLong), world);
  const at::Tensor target = replica_share(torch::randint(kNumTokens, {kBatch, kSequence}, torch::kLong), world);
  std::vector<double> after_all;
  std::vector<double> after;
  std::vector<double> shares;
  std::int64_t bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    torch::manual_seed(1);
    Pipeline pipeline(make_transformer(), PipelineOptions(1).num_micro_batches(kNumMicroBatches));
    after_all.push_back(take_step(pipeline, input, target).seconds_after);
    const Times times = take_step(pipeline, input, target);
    after.push_back(times.seconds_after);
    shares.push_back(times.seconds_after / times.step_seconds);
    if (round > 0) continue;
    for (const at::Tensor& parameter : pipeline->parameters()) bytes += static_cast<std::int64_t>(parameter.nbytes());
  }
  if (world.rank != 0) return 0;
  fmt::print("{} replicas, M = {}, {:.1f} MiB of gradients; medians of {} rounds\n\n", kNumReplicas, kNumMicroBatches,
             static_cast<double>(bytes) / (1 << 20), rounds);
  fmt::print("after the last action, nothing hidden  {:.4f} s\n", median(after_all));
  fmt::print("after the last action                  {:.4f} s\n", median(after));
  fmt::print("hidden                                 {:.1f} %\n", 100 * (1 - median(after) / median(after_all)));
  fmt::print("not hidden, of the step                {:.1f} %\n", 100 * median(shares));
  return 0;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  gpipe::keep_freed_memory();
  at::set_num_threads(1);
  return gpipe::benchmarks::run(rounds);
}
