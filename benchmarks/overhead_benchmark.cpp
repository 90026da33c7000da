// What an action costs beyond the layers' own operations: 16 linear layers of 16 x 16 on micro-batches of 2 rows, M =
// 32.
//
//   overhead_benchmark [turns]       default: 20; about a minute
//
// Not on Google Benchmark: each figure is a difference of programs that must run in turns. They are
//   plain      per micro-batch, the forward of all layers, the loss, backward()
//   cut        the same operations, with the graph cut where the stages meet: one backward() per stage.
//              What it costs beyond `plain` is libtorch's, and no pipeline can save it
//   pipeline   train_step with K stages
// plain and cut run in as many threads at once as the pipeline has cores, each thread on its own model: operations this
// small take up to half as long again when another core is busy too, and that is the machine's, not the pipeline's.
// A turn is a few steps in a row, after one that is not counted: a training loop does not find its caches cold either.
// CPU figures are processor time of all threads: they count what the kernel does to put threads to sleep and wake them,
// and depend little on what else the machine does. The wall figure depends on that, and on the bubble of the schedule.
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
#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kNumLayers = 16;
constexpr int kWidth = 16;
constexpr int kNumMicroBatches = 32;
constexpr int kRows = 2 * kNumMicroBatches;
constexpr int kStepsPerTurn = 4;

using Linears = std::vector<std::shared_ptr<torch::nn::LinearImpl>>;

Pipeline make_pipeline(int num_stages, const std::string& schedule) {
  LayerChain chain;
  for (int layer = 0; layer < kNumLayers; ++layer) {
    chain.add<torch::nn::Linear>(fmt::format("linear{}", layer), kWidth, kWidth);
  }
  std::vector<int> balance(num_stages, kNumLayers / num_stages);
  for (int stage = 0; stage < kNumLayers % num_stages; ++stage) ++balance[stage];
  return Pipeline(chain,
                  PipelineOptions(num_stages).num_micro_batches(kNumMicroBatches).schedule(schedule).balance(balance));
}

Linears linears_of(const Pipeline& pipeline) {
  Linears linears;
  for (const auto& module : pipeline->children()) {
    linears.push_back(std::dynamic_pointer_cast<torch::nn::LinearImpl>(module));
  }
  return linears;
}

// One step in this thread. The layers of a stage share a graph, those of different stages do not.
at::Tensor plain_step(const Linears& linears, const std::vector<int>& layers_per_stage, const at::Tensor& input,
                      const at::Tensor& target) {
  at::Tensor total;
  const std::vector<at::Tensor> targets = target.tensor_split(kNumMicroBatches);
  int micro_batch = 0;
  for (at::Tensor tensor : input.tensor_split(kNumMicroBatches)) {
    std::vector<at::Tensor> stage_inputs;
    std::vector<at::Tensor> stage_outputs;
    auto linear = linears.begin();
    for (const int count : layers_per_stage) {
      if (linear != linears.begin()) tensor = tensor.detach().requires_grad_(true);
      stage_inputs.push_back(tensor);
      for (const auto end = linear + count; linear != end; ++linear) tensor = (*linear)->forward(tensor);
      stage_outputs.push_back(tensor);
    }
    const at::Tensor loss = at::mse_loss(tensor, targets[micro_batch++]) * (1.0 / kNumMicroBatches);
    loss.backward();
    for (std::size_t stage = layers_per_stage.size() - 1; stage > 0; --stage) {
      stage_outputs[stage - 1].backward(stage_inputs[stage].grad());
    }
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  return total;
}

struct Batch {
  at::Tensor input = torch::randn({kRows, kWidth});
  at::Tensor target = torch::randn({kRows, kWidth});
};

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
  const std::vector<Batch> batches(models.size());
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

void run(int num_stages, const std::string& schedule, int turns) {
  Pipeline pipeline = make_pipeline(num_stages, schedule);
  const int cores = std::min<int>(num_stages, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<Linears> models;
  for (int core = 0; core < cores; ++core) models.push_back(linears_of(make_pipeline(num_stages, schedule)));
  const Batch batch;
  const auto pipelined = [&] {
    pipeline->train_step(batch.input, batch.target, [](const at::Tensor& output, const at::Tensor& wanted) {
      return at::mse_loss(output, wanted);
    });
  };
  Samples plain_samples;
  Samples cut_samples;
  Samples pipelined_samples;
  for (int turn = -1; turn < turns; ++turn) {  // the first warms up
    const Seconds plain_seconds = measure_side_by_side(models, {kNumLayers});
    const Seconds cut_seconds = measure_side_by_side(models, pipeline->layers_per_stage());
    const Seconds pipelined_seconds = measure_turn(pipelined);
    if (turn < 0) continue;
    plain_samples.add(plain_seconds);
    cut_samples.add(cut_seconds);
    pipelined_samples.add(pipelined_seconds);
  }
  const double actions = 2.0 * num_stages * kNumMicroBatches;
  const double wall = median(pipelined_samples.wall) - median(plain_samples.wall) / cores;
  fmt::print("{:>8} {:>2} {:>7.0f} {:>9.2f} {:>9.2f} {:>9.2f} {:>10.1f} {:>12.1f} {:>14.1f} {:>12.1f}\n", schedule,
             num_stages, actions, 1e3 * median(plain_samples.cpu), 1e3 * median(cut_samples.cpu),
             1e3 * median(pipelined_samples.cpu),
             1e6 * median_difference(pipelined_samples.cpu, plain_samples.cpu) / actions,
             1e6 * median_difference(cut_samples.cpu, plain_samples.cpu) / actions,
             1e6 * median_difference(pipelined_samples.cpu, cut_samples.cpu) / actions, 1e6 * wall * cores / actions);
  std::fflush(stdout);
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  at::set_num_threads(1);
  fmt::print("16 x Linear(16, 16), M = 32, 2 rows a micro-batch; medians of {} turns\n", turns);
  fmt::print("ms: processor time of a step.  us: per action, F and B counted; the limit is 25, the aim 10\n\n");
  fmt::print("{:>8} {:>2} {:>7} {:>9} {:>9} {:>9} {:>10} {:>12} {:>14} {:>12}\n", "schedule", "K", "actions",
             "plain ms", "cut ms", "gpipe ms", "CPU us", "of it: cut", "of it: gpipe", "wall us");
  for (const char* schedule : {"1f1b", "gpipe"}) {
    for (const int num_stages : {2, 3, 4, 6, 8}) gpipe::benchmarks::run(num_stages, schedule, turns);
  }
  fmt::print(
      "\nwall us: (wall of the pipelined step - wall of the plain one / cores in use) x cores in use / actions;\n"
      "it holds the bubble of the schedule and whatever else the machine ran\n");
}
