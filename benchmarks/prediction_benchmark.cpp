// How near a prediction comes to what is measured: the step time and each stage's peak bytes, from a profile of one
// micro-batch, against real steps of the same process.
//
//   prediction_benchmark [repeats]       default: 5; about two minutes
//
// Models: the Transformer of 8 blocks (see transformer.h), batch 32, and a CNN whose layers are very unequal, batch 64.
// Profile, warm-up, steps; medians. `core` is the share of a core that a busy worker got: below 0.95, something else ran on
// the machine, and the times of that run mean little. Also: the step time of the partition that was found, against that of
// equal numbers of layers.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "benchmarks/transformer.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/simulate/simulate.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kNumStages = 2;
constexpr int kNumMicroBatches = 8;

struct Subject {
  std::string name;
  torch::nn::Sequential model;
  at::Tensor input;
  at::Tensor target;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> loss;
};

torch::nn::Sequential make_unequal_cnn() {
  torch::nn::Sequential model;
  int channels = 3;
  for (int block = 0; block < 5; ++block) {
    const int wider = 16 << block;
    model->push_back(fmt::format("conv{}", block),
                     torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, wider, 3).padding(1)));
    model->push_back(fmt::format("relu{}", block), torch::nn::ReLU());
    model->push_back(fmt::format("pool{}", block), torch::nn::MaxPool2d(2));
    channels = wider;
  }
  model->push_back("flatten", torch::nn::Flatten());
  model->push_back("head", torch::nn::Linear(channels * 4, 10));
  return model;
}

Profile profile_of(const Subject& subject) {
  const std::int64_t rows = subject.input.size(0) / kNumMicroBatches;
  const at::Tensor target = subject.target.narrow(0, 0, rows);
  ProfileOptions options;
  options.loss = [&](const Tensors& outputs) { return subject.loss(outputs.front(), target); };
  return profile(subject.model, subject.input.narrow(0, 0, rows), options);
}

struct Measured {
  double step_seconds = 0;
  double core = 0;
  std::vector<StageMemory> memory;
};

Measured measure_steps(const Subject& subject, const PipelineOptions& options, int repeats) {
  Pipeline pipeline(subject.model, options);
  std::vector<double> makespans;
  std::vector<double> cores;
  Measured measured;
  for (int repeat = -1; repeat < repeats; ++repeat) {
    StepResult step;
    const Seconds seconds = measure([&] { step = pipeline->train_step(subject.input, subject.target, subject.loss); });
    if (repeat < 0) continue;
    double busy = 0;
    for (const WorkerTimeline& worker : step.timeline.workers) busy += worker.busy_seconds;
    makespans.push_back(step.timeline.makespan_seconds);
    cores.push_back(seconds.cpu / busy);
    measured.memory = step.memory;
  }
  measured.step_seconds = median(makespans);
  measured.core = median(cores);
  return measured;
}

void run(const Subject& subject, int repeats) {
  const Profile measured_profile = profile_of(subject);
  for (const char* name : {"gpipe", "1f1b"}) {
    for (const Recompute recompute : {Recompute::kNever, Recompute::kAlways}) {
      PlanOptions options;
      options.num_stages = kNumStages;
      options.num_micro_batches = kNumMicroBatches;
      options.schedule = name;
      options.recompute = recompute;
      options.optimizer_slots = 0;
      const Plan found = plan(measured_profile, options);
      const Schedule schedule = with_recompute(make_schedule(name, kNumStages, kNumMicroBatches), recompute);
      const Timeline predicted = simulate(schedule, found.costs);
      const Measured measured = measure_steps(subject, PipelineOptions(found).measure_memory(true), repeats);
      double worst = 1;
      for (int stage = 0; stage < kNumStages; ++stage) {
        const double ratio = static_cast<double>(predicted.workers[stage].peak_bytes) /
                             static_cast<double>(measured.memory[stage].peak_bytes);
        if (std::abs(ratio - 1) > std::abs(worst - 1)) worst = ratio;
      }
      const int num_layers = static_cast<int>(measured_profile.layers.size());
      const int half = (num_layers + 1) / 2;
      const Measured equal = measure_steps(subject, PipelineOptions(found).balance({half, num_layers - half}), repeats);
      fmt::print("{:<12} {:>6} {:>8} {:>8} | {:>9.3f} {:>9.3f} {:>6.3f} | {:>6.3f} | {:>6.2f} | {:>9.3f} {:>6.3f}\n",
                 subject.name, name, gpipe::name(recompute), fmt::format("{}", fmt::join(found.layers_per_stage, "+")),
                 predicted.makespan_seconds, measured.step_seconds, predicted.makespan_seconds / measured.step_seconds,
                 worst, measured.core, equal.step_seconds, measured.step_seconds / equal.step_seconds);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  using namespace gpipe::benchmarks;  // NOLINT(google-build-using-namespace)
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  at::set_num_threads(1);
  torch::manual_seed(1);
  const auto counted = std::make_shared<gpipe::MemoryAccount>("parameters");  // so that they count from the start
  fmt::print("K = 2, M = 8, one intra-op thread each; medians of {} steps\n\n", repeats);
  fmt::print("{:<12} {:>6} {:>8} {:>8} | {:>9} {:>9} {:>6} | {:>6} | {:>6} | {:>9} {:>6}\n", "", "", "recompute",
             "layers", "predicted", "measured", "ratio", "bytes", "core", "equal", "ratio");
  run({"transformer", make_transformer(), torch::randint(kNumTokens, {32, kSequence}, torch::kLong),
       torch::randint(kNumTokens, {32, kSequence}, torch::kLong), &token_loss},
      repeats);
  run({"unequal cnn", make_unequal_cnn(), torch::randn({64, 3, 64, 64}), torch::randint(10, {64}, torch::kLong),
       [](const at::Tensor& output, const at::Tensor& target) { return torch::cross_entropy_loss(output, target); }},
      repeats);
}
