// What an action costs beyond the layers' own operations: 16 linear layers of 16 x 16 on micro-batches of 2 rows, M =
// 32.
//
//   overhead_benchmark [turns]       default: 20; about a minute
//
// Not on Google Benchmark: each figure is a difference of programs that must run in turns. They are
//   plain      per micro-batch, the forward of all layers, the loss, backward()
//   cut        the same operations, with the graph cut where the stages meet: one backward() per stage.
//              What it costs beyond `plain` is libtorch's, and no pipeline can save it
//   pipeline   train_step with K workers, and with twice as many stages for zb-v. A split backward runs the graph of a
//              stage twice, which counts as the pipeline's own
// plain and cut run in as many threads at once as the pipeline has cores, each thread on its own model: operations this
// small take up to half as long again when another core is busy too, and that is the machine's, not the pipeline's.
// A turn is a few steps in a row, after one that is not counted: a training loop does not find its caches cold either.
// CPU figures are processor time of all threads: they count what the kernel does to put threads to sleep and wake them,
// and depend little on what else the machine does. The wall figure depends on that, and on the bubble of the schedule.
// The set-up is the processor time of the caller's thread: all that train_step does before the first action and after
// the last one. It is part of the figures an action, too.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "benchmarks/tiny_chain.h"
#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kStepsPerTurn = 4;

// Of one step.
template <typename Step>
Seconds measure_turn(const Step& step) {
  step();
  const Seconds seconds = measure([&] {
    for (int index = 0; index < kStepsPerTurn; ++index) step();
  });
  return {seconds.wall / kStepsPerTurn, seconds.cpu / kStepsPerTurn};
}

// Of one step of one thread, when a thread for each of the models runs such steps at the same time.
Seconds measure_side_by_side(const std::vector<Linears>& models, const std::vector<int>& layers_per_stage) {
  const std::vector<TinyBatch> batches(models.size());
  Seconds seconds = measure_turn([&] {
    std::vector<std::thread> threads;
    for (std::size_t index = 0; index < models.size(); ++index) {
      threads.emplace_back(
          [&, index] { plain_step(models[index], layers_per_stage, batches[index].input, batches[index].target); });
    }
    for (std::thread& thread : threads) thread.join();
  });
  seconds.cpu /= static_cast<double>(models.size());
  return seconds;
}

// Processor seconds of this thread in a step.
double measure_set_up(Pipeline& pipeline, const TinyBatch& batch) {
  pipelined_step(pipeline, batch);
  const double start = read_clock(CLOCK_THREAD_CPUTIME_ID);
  for (int index = 0; index < kStepsPerTurn; ++index) pipelined_step(pipeline, batch);
  return (read_clock(CLOCK_THREAD_CPUTIME_ID) - start) / kStepsPerTurn;
}

void run(int num_workers, const std::string& schedule, int turns) {
  Pipeline pipeline = make_pipeline(num_workers, schedule);
  Pipeline normed = make_pipeline(num_workers, schedule, Norms::kAfterEachLayer);
  const int cores = std::min<int>(num_workers, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<Linears> models;
  for (int core = 0; core < cores; ++core) models.push_back(linears_of(make_pipeline(num_workers, schedule)));
  const TinyBatch batch;
  Samples plain_samples;
  Samples cut_samples;
  Samples pipelined_samples;
  std::vector<double> set_ups;
  std::vector<double> set_ups_with_norms;
  for (int turn = -1; turn < turns; ++turn) {  // the first warms up
    const Seconds plain_seconds = measure_side_by_side(models, {kNumLayers});
    const Seconds cut_seconds = measure_side_by_side(models, pipeline->layers_per_stage());
    const Seconds pipelined_seconds = measure_turn([&] { pipelined_step(pipeline, batch); });
    const double set_up = measure_set_up(pipeline, batch);
    const double set_up_with_norms = measure_set_up(normed, batch);
    if (turn < 0) continue;
    plain_samples.add(plain_seconds);
    cut_samples.add(cut_seconds);
    pipelined_samples.add(pipelined_seconds);
    set_ups.push_back(set_up);
    set_ups_with_norms.push_back(set_up_with_norms);
  }
  double actions = 0;
  for (const WorkerTimeline& worker : pipeline->last_timeline().workers) {
    actions += static_cast<double>(worker.spans.size());
  }
  const double wall = median(pipelined_samples.wall) - median(plain_samples.wall) / cores;
  fmt::print(
      "{:>8} {:>2} {:>7.0f} {:>9.2f} {:>9.2f} {:>9.2f} {:>7.1f} {:>9.1f} {:>11.1f} {:>8.1f} {:>8.0f} {:>11.0f}\n",
      schedule, num_workers, actions, 1e3 * median(plain_samples.cpu), 1e3 * median(cut_samples.cpu),
      1e3 * median(pipelined_samples.cpu), 1e6 * median_difference(pipelined_samples.cpu, plain_samples.cpu) / actions,
      1e6 * median_difference(cut_samples.cpu, plain_samples.cpu) / actions,
      1e6 * median_difference(pipelined_samples.cpu, cut_samples.cpu) / actions, 1e6 * wall * cores / actions,
      1e6 * median(set_ups), 1e6 * median(set_ups_with_norms));
  std::fflush(stdout);
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  constexpr int kParameters = 2 * gpipe::benchmarks::kNumLayers;
  constexpr int kParametersWithNorms = 2 * kParameters;
  const int turns = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  at::set_num_threads(1);
  fmt::print("16 x Linear(16, 16), M = 32, 2 rows a micro-batch; medians of {} turns\n", turns);
  fmt::print("ms: processor time of a step.  us: per action; the limit is 10 for what is gpipe's\n");
  fmt::print("set-up: us a step, with {} parameter tensors; and with {}, half of them of deferred batch norms.\n",
             kParameters, kParametersWithNorms);
  fmt::print("        The limit is 50 + 2 a parameter tensor: {} and {}\n\n", 50 + 2 * kParameters,
             50 + 2 * kParametersWithNorms);
  fmt::print("{:>8} {:>2} {:>7} {:>9} {:>9} {:>9} {:>7} {:>9} {:>11} {:>8} {:>8} {:>11}\n", "schedule", "K", "actions",
             "plain ms", "cut ms", "gpipe ms", "CPU us", "of it cut", "of it gpipe", "wall us", "set-up", "with norms");
  for (const char* schedule : {"1f1b", "gpipe", "zb-v"}) {
    for (const int num_workers : {2, 3, 4, 6, 8}) gpipe::benchmarks::run(num_workers, schedule, turns);
  }
  fmt::print(
      "\nwall us: (wall of the pipelined step - wall of the plain one / cores in use) x cores in use / actions;\n"
      "it holds the bubble of the schedule and whatever else the machine ran\n");
}
