// How much faster two workers on two cores are than one thread with the same micro-batches, against the bound that the
// schedule has with equal stages and free communication: 2M / (M + 1) for gpipe and 1f1b.
//
//   speed_benchmark [repeats]       default: 3; two to three minutes
//
// The model: a Transformer of 8 blocks, d 512, 8 heads, feed-forward 2048, sequence 128, 1000 tokens; batch 32. Not on
// Google Benchmark: a ratio means something only if its two sides run in turns. Each turn is plain, gpipe, 1f1b, zb-h1,
// zb-v.
//
// Where the speed-up stays below the bound, three factors say why; ratio = schedule x work x outside:
//   schedule   (1 - bubble) against the bubble of equal stages: unequal stages, late hand-offs
//   work       busy seconds of all stages against the plain step's: memory bandwidth, page faults, cores taken by others.
//              CPU compares processor seconds instead, which leaves out the cores taken by others
//   outside    from the first action's start to the last one's end, against the whole call
// `core 1` and `core K` are the shares of a core that a busy thread got, in the plain and in the pipelined step: below
// 0.95, something else ran on the machine, and the ratios of that run mean little.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "benchmarks/transformer.h"
#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kNumStages = 2;
constexpr int kBatch = 32;

torch::Tensor plain_step(torch::nn::Sequential& model, int num_micro_batches, const torch::Tensor& input,
                         const torch::Tensor& target) {
  torch::Tensor total;
  for (const MicroBatch& micro_batch : split_batch({input, target}, num_micro_batches)) {
    const torch::Tensor output = model->forward(micro_batch.tensors[0]);
    const double weight = static_cast<double>(micro_batch.num_samples) / static_cast<double>(kBatch);
    const torch::Tensor loss = token_loss(output, micro_batch.tensors[1]) * weight;
    loss.backward();
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  return total;
}

std::int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// One side of the comparison, with what its steps took.
struct Contender {
  std::string name;
  std::function<StepResult()> step;
  double ideal_bubble = 0;
  Samples samples = {};
  std::vector<double> makespan = {};
  std::vector<double> busy = {};     // of all stages
  std::vector<double> busiest = {};  // of the stages, against their mean
  std::vector<double> bubble = {};
  std::vector<double> page_faults = {};
  double loss = 0;

  void run(bool count) {
    const std::int64_t faults_before = benchmarks::page_faults();
    StepResult result;
    const Seconds seconds = measure([&] { result = step(); });
    loss = result.loss.item<double>();
    if (!count) return;
    samples.add(seconds);
    page_faults.push_back(static_cast<double>(benchmarks::page_faults() - faults_before));
    const Timeline& timeline = result.timeline;
    if (timeline.workers.empty()) return;
    double sum = 0;
    double most = 0;
    for (const WorkerTimeline& worker : timeline.workers) {
      sum += worker.busy_seconds;
      most = std::max(most, worker.busy_seconds);
    }
    makespan.push_back(timeline.makespan_seconds);
    busy.push_back(sum);
    busiest.push_back(most * timeline.num_workers() / sum);
    bubble.push_back(timeline.bubble_fraction);
  }
};

void print(int num_micro_batches, const Contender& plain, const Contender& pipelined) {
  const double wall = median(pipelined.samples.wall);
  const double plain_wall = median(plain.samples.wall);
  const double speed_up = plain_wall / wall;
  const double ideal_bubble = pipelined.ideal_bubble;
  const double bound = kNumStages * (1 - ideal_bubble);
  const double bubble = median(pipelined.bubble);
  fmt::print("{:>2} {:>6} {:>8.2f} {:>7.2f} {:>9.3f} {:>6.3f} {:>6.3f} | {:>9.3f} {:>6.3f} {:>8.3f} | {:>6.3f}",
             num_micro_batches, pipelined.name, plain_wall, wall, speed_up, bound, speed_up / bound,
             (1 - bubble) / (1 - ideal_bubble), plain_wall / median(pipelined.busy), median(pipelined.makespan) / wall,
             median(pipelined.samples.cpu) / median(plain.samples.cpu));
  fmt::print(" {:>7.1f} {:>6.1f} {:>8.3f} {:>7.0f} {:>7.0f} {:>6.2f} {:>6.2f}\n", 100 * bubble, 100 * ideal_bubble,
             median(pipelined.busiest), median(plain.page_faults) / 1e3, median(pipelined.page_faults) / 1e3,
             median(plain.samples.cpu) / plain_wall, median(pipelined.samples.cpu) / median(pipelined.busy));
  std::fflush(stdout);
}

void run(int num_micro_batches, int repeats) {
  torch::nn::Sequential model = make_transformer();
  const torch::Tensor input = torch::randint(kNumTokens, {kBatch, kSequence}, torch::kLong);
  const torch::Tensor target = torch::randint(kNumTokens, {kBatch, kSequence}, torch::kLong);
  std::vector<Contender> contenders;
  contenders.push_back({"plain", [&] {
                          StepResult result;
                          result.loss = plain_step(model, num_micro_batches, input, target);
                          return result;
                        }});
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-v"}) {
    const Schedule actions = make_schedule(schedule, kNumStages, num_micro_batches);
    // The head is a sixth of a block: no other cuts of the ten layers are nearer to equal.
    const std::vector<int> balance = actions.num_stages == 2 ? std::vector<int>{1 + kNumBlocks / 2, kNumBlocks / 2 + 1}
                                                             : std::vector<int>{3, 2, 2, 3};
    Pipeline pipeline(
        model, PipelineOptions(kNumStages).num_micro_batches(num_micro_batches).schedule(schedule).balance(balance));
    contenders.push_back({schedule, [=]() mutable { return pipeline->train_step(input, target, &token_loss); },
                          simulate(actions, uniform_costs(actions)).bubble_fraction});
  }
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first warms up
    for (Contender& contender : contenders) {
      contender.run(repeat >= 0);
      model->zero_grad();
    }
  }
  for (std::size_t index = 1; index < contenders.size(); ++index) {
    print(num_micro_batches, contenders[0], contenders[index]);
    if (contenders[index].loss == contenders[0].loss) continue;
    fmt::print("the losses differ: {} and {}\n", contenders[0].loss, contenders[index].loss);
    std::exit(1);
  }
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  gpipe::keep_freed_memory();  // page faults of the plain loop must not flatter the others
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  at::set_num_threads(1);
  fmt::print("Transformer of 8 blocks, batch 32, K = 2, one intra-op thread each; medians of {} runs in turns\n\n",
             repeats);
  fmt::print(
      "{:>2} {:>6} {:>8} {:>7} {:>9} {:>6} {:>6} | {:>9} {:>6} {:>8} | {:>6} {:>7} {:>6} {:>8} {:>7} {:>7} {:>6} "
      "{:>6}\n",
      "M", "", "plain s", "gpipe s", "speed-up", "bound", "ratio", "schedule", "work", "outside", "CPU", "bubble%",
      "ideal%", "busiest", "kflts 1", "kflts K", "core 1", "core K");
  for (const int num_micro_batches : {8, 16}) gpipe::benchmarks::run(num_micro_batches, repeats);
}
