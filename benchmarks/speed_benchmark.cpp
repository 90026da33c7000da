// How much faster two workers on two cores are than one thread with the same micro-batches, against the bound that the
// schedule has with equal stages and free communication, 2M / (M + 1) for gpipe and 1f1b, and against what the machine
// itself gives to two threads: two plain loops at once, each with a model of its own.
//
//   speed_benchmark [repeats] [transformer | cnn] [M]      default: 5, both, 8 and 16
//
// The models: a Transformer of 8 blocks, d 512, 8 heads, feed-forward 2048, sequence 128, 1000 tokens, batch 32; and a
// CNN of 12 basic blocks of 32, 64 and 128 channels on 32 x 32, batch 64. Not on Google Benchmark: a ratio means
// something only if its two sides run in turns. Each turn is one thread, two of them, and each schedule; `search` is
// one that was searched for a profile of the model, taken at the start.
//
// Where the speed-up stays below the bound, three factors say why; ratio = schedule x work x outside:
//   schedule   (1 - bubble) against the bubble of equal stages: unequal stages, late hand-offs
//   work       busy seconds of all stages against the plain step's: memory bandwidth, page faults, cores taken by
//              others. CPU compares processor seconds instead, which leaves out the cores taken by others
//   outside    from the first action's start to the last one's end, against the whole call
// `machine` is the speed-up against that of two plain loops: above 1 - bubble nothing is left to gain but by the
// machine. `core 1` and `core K` are the shares of a core that a busy thread got, in the plain and in the pipelined
// step: below 0.95, something else ran on the machine, and the ratios of that run mean little. `peak` is the fullest
// stage's bytes against 1f1b's.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/basic_block_cnn.h"
#include "benchmarks/stopwatch.h"
#include "benchmarks/transformer.h"
#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kNumStages = 2;
struct Workload {
  std::string name;
  std::function<torch::nn::Sequential()> make;
  torch::Tensor input;
  torch::Tensor target;
  torch::Tensor (*loss)(const torch::Tensor& output, const torch::Tensor& target);
};

torch::Tensor class_loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}

std::vector<Workload> workloads() {
  const torch::Tensor tokens = torch::randint(kNumTokens, {32, kSequence}, torch::kLong);
  const torch::Tensor next = torch::randint(kNumTokens, {32, kSequence}, torch::kLong);
  return {{"transformer", &make_transformer, tokens, next, &token_loss},
          {"cnn", &make_basic_block_cnn, torch::randn({64, 3, 32, 32}), torch::randint(10, {64}, torch::kLong),
           &class_loss}};
}

torch::Tensor plain_step(const Workload& workload, torch::nn::Sequential& model, int num_micro_batches) {
  torch::Tensor total;
  for (const MicroBatch& micro_batch : split_batch({workload.input, workload.target}, num_micro_batches)) {
    const torch::Tensor output = model->forward(micro_batch.tensors[0]);
    const double weight = static_cast<double>(micro_batch.num_samples) / static_cast<double>(workload.input.size(0));
    const torch::Tensor loss = workload.loss(output, micro_batch.tensors[1]) * weight;
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
  std::vector<double> busy = {};     // of all workers
  std::vector<double> busiest = {};  // of the workers, against their mean
  std::vector<double> bubble = {};
  std::vector<double> page_faults = {};
  std::int64_t peak_bytes = 0;  // predicted, of the fullest worker
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

// Ratios are medians over the turns, each against the plain step of its own turn.
double median_ratio(const std::vector<double>& values, const std::vector<double>& others) {
  std::vector<double> ratios;
  for (std::size_t turn = 0; turn < values.size(); ++turn) ratios.push_back(values[turn] / others[turn]);
  return median(std::move(ratios));
}

void print(int num_micro_batches, const Contender& plain, const Contender& twice, const Contender& pipelined,
           std::int64_t usual_bytes) {
  const double speed_up = median_ratio(plain.samples.wall, pipelined.samples.wall);
  const double ideal_bubble = pipelined.ideal_bubble;
  const double bound = kNumStages * (1 - ideal_bubble);
  const double bubble = median(pipelined.bubble);
  const double machine = kNumStages * median_ratio(plain.samples.wall, twice.samples.wall);
  fmt::print(
      "{:>2} {:>6} {:>7.2f} {:>7.2f} {:>8.3f} {:>6.3f} {:>6.3f} {:>7.3f} | {:>8.3f} {:>6.3f} {:>7.3f} | {:>5.3f}",
      num_micro_batches, pipelined.name, median(plain.samples.wall), median(pipelined.samples.wall), speed_up, bound,
      speed_up / bound, speed_up / machine, (1 - bubble) / (1 - ideal_bubble),
      median_ratio(plain.samples.wall, pipelined.busy), median_ratio(pipelined.makespan, pipelined.samples.wall),
      median_ratio(pipelined.samples.cpu, plain.samples.cpu));
  fmt::print(" {:>7.1f} {:>6.1f} {:>7.3f} {:>7.0f} {:>6.2f} {:>6.2f} {:>5.2f}\n", 100 * bubble, 100 * ideal_bubble,
             median(pipelined.busiest), median(pipelined.page_faults) / 1e3,
             median_ratio(plain.samples.cpu, plain.samples.wall), median_ratio(pipelined.samples.cpu, pipelined.busy),
             static_cast<double>(pipelined.peak_bytes) / static_cast<double>(usual_bytes));
  std::fflush(stdout);
}

// What the layers cost with the other core at work.
Profile profile_of(const Workload& workload, const torch::nn::Sequential& model, int num_micro_batches) {
  const std::int64_t rows = workload.input.size(0) / num_micro_batches;
  const torch::Tensor target = workload.target.narrow(0, 0, rows);
  ProfileOptions options;
  options.busy_neighbours = kNumStages - 1;
  options.loss = [&](const Tensors& outputs) { return workload.loss(outputs.front(), target); };
  return profile(model, {workload.input.narrow(0, 0, rows)}, options);
}

void run(const Workload& workload, int num_micro_batches, int repeats) {
  torch::nn::Sequential model = workload.make();
  torch::nn::Sequential other = workload.make();
  std::vector<Contender> contenders;
  contenders.push_back({"plain", [&] {
                          StepResult result;
                          result.loss = plain_step(workload, model, num_micro_batches);
                          return result;
                        }});
  contenders.push_back({"twice", [&] {
                          StepResult result;
                          std::thread second([&] {
                            at::set_num_threads(1);
                            plain_step(workload, other, num_micro_batches);
                          });
                          result.loss = plain_step(workload, model, num_micro_batches);
                          second.join();
                          return result;
                        }});
  const Profile profile = profile_of(workload, model, num_micro_batches);
  std::int64_t usual_bytes = 0;
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-v", kSearchedSchedule}) {
    PlanOptions options;
    options.num_stages = kNumStages;
    options.num_micro_batches = num_micro_batches;
    options.schedule = schedule;
    options.search_seconds = 5;
    const Plan plan = gpipe::plan(profile, options);
    const Schedule actions = schedule_of(plan);
    Pipeline pipeline(model, PipelineOptions(plan));
    contenders.push_back(
        {schedule, [=]() mutable { return pipeline->train_step(workload.input, workload.target, workload.loss); },
         simulate(actions, uniform_costs(actions)).bubble_fraction});
    contenders.back().peak_bytes =
        *std::max_element(plan.predicted_peak_bytes.begin(), plan.predicted_peak_bytes.end());
    if (usual_bytes == 0) usual_bytes = contenders.back().peak_bytes;
    fmt::print("{:>2} {:>6} layers {}, predicted step {:.3f} s\n", num_micro_batches, schedule,
               fmt::join(plan.layers_per_stage, "+"), plan.predicted_step_seconds);
  }
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first warms up
    for (Contender& contender : contenders) {
      contender.run(repeat >= 0);
      model->zero_grad();
      other->zero_grad();
    }
  }
  fmt::print("{:>2} two plain loops at once: {:.3f} times the work of one\n", num_micro_batches,
             kNumStages * median_ratio(contenders[0].samples.wall, contenders[1].samples.wall));
  for (std::size_t index = 2; index < contenders.size(); ++index) {
    print(num_micro_batches, contenders[0], contenders[1], contenders[index], usual_bytes);
    if (contenders[index].loss == contenders[0].loss) continue;
    fmt::print("the losses differ: {} and {}\n", contenders[0].loss, contenders[index].loss);
    std::exit(1);
  }
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  using namespace gpipe::benchmarks;  // NOLINT(google-build-using-namespace)
  gpipe::keep_freed_memory();         // page faults of the plain loop must not flatter the others
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const std::string only = argc > 2 ? argv[2] : "";
  const int only_count = argc > 3 ? std::atoi(argv[3]) : 0;
  at::set_num_threads(1);
  for (const Workload& workload : workloads()) {
    if (!only.empty() && only != workload.name) continue;
    fmt::print("\n{}, batch {}, K = 2, one intra-op thread each; medians of {} turns\n\n", workload.name,
               workload.input.size(0), repeats);
    fmt::print(
        "{:>2} {:>6} {:>7} {:>7} {:>8} {:>6} {:>6} {:>7} | {:>8} {:>6} {:>7} | {:>5} {:>7} {:>6} {:>7} {:>7} {:>6} "
        "{:>6} {:>5}\n",
        "M", "", "plain s", "gpipe s", "speed-up", "bound", "ratio", "machine", "schedule", "work", "outside", "CPU",
        "bubble%", "ideal%", "busiest", "kfaults", "core 1", "core K", "peak");
    for (const int num_micro_batches : {8, 16}) {
      if (only_count == 0 || only_count == num_micro_batches) run(workload, num_micro_batches, repeats);
    }
  }
}
