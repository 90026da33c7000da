// What an optimizer step takes with one optimizer in one thread, and with the optimizers of the stages on their
// workers.
//
//   update_benchmark [repeats]       default: 21; about half a minute
//
// Two stages of equal size, 50 million parameters together, in 48 matrices and their biases. Not on Google Benchmark: a
// ratio means something only if its two sides run in turns.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kNumLayers = 48;
constexpr int kWidth = 1020;

Pipeline make_pipeline(int num_workers) {
  LayerChain chain;
  for (int layer = 0; layer < kNumLayers; ++layer) {
    chain.add<torch::nn::Linear>(fmt::format("linear{}", layer), kWidth, kWidth);
  }
  const std::vector<int> balance(num_workers, kNumLayers / num_workers);
  return Pipeline(chain, PipelineOptions(num_workers).num_micro_batches(2).balance(balance));
}

template <typename Optimizer, typename Options>
void run(const std::string& name, const Options& options, int repeats) {
  Pipeline pipeline = make_pipeline(2);
  Pipeline other = make_pipeline(2);
  Pipeline beside = make_pipeline(2);
  Pipeline whole = make_pipeline(1);
  Optimizer one(pipeline->parameters(), options);
  Optimizer another(beside->parameters(), options);
  StageOptimizers<Optimizer> of_stages(other, options);
  StageOptimizers<Optimizer> of_one_stage(whole, options);
  const at::Tensor input = torch::randn({2, kWidth});
  for (Pipeline* each : {&pipeline, &other, &beside, &whole}) {
    (*each)->train_step(input, input, torch::nn::MSELoss());
  }
  Samples plain;
  Samples twice;
  Samples staged;
  Samples in_blocks;
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first makes the states
    const Seconds of_one = measure([&] { one.step(); });
    const Seconds of_two = measure([&] {
      std::thread second([&] {
        at::set_num_threads(1);
        another.step();
      });
      one.step();
      second.join();
    });
    const Seconds of_parts = measure([&] { of_stages.step(); });
    const Seconds of_whole = measure([&] { of_one_stage.step(); });
    if (repeat < 0) continue;
    plain.add(of_one);
    twice.add(of_two);
    staged.add(of_parts);
    in_blocks.add(of_whole);
  }
  std::vector<double> shares;
  std::vector<double> machine;
  std::vector<double> blocks;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    shares.push_back(staged.wall[repeat] / plain.wall[repeat]);
    blocks.push_back(in_blocks.wall[repeat] / plain.wall[repeat]);
    machine.push_back(twice.wall[repeat] / plain.wall[repeat] / 2);
  }
  fmt::print("{:<36} {:>10.1f} {:>12.1f} {:>8.3f} {:>10.3f} {:>10.3f}\n", name, 1e3 * median(plain.wall),
             1e3 * median(staged.wall), median(shares), median(blocks), median(machine));
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  using namespace gpipe::benchmarks;  // NOLINT(google-build-using-namespace)
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 21;
  at::set_num_threads(1);
  fmt::print("50 million parameters; milliseconds, medians of {} turns, and ratios to `one` turn by turn\n", repeats);
  fmt::print("one: libtorch's optimizer in one thread; two stages and one stage: StageOptimizers;\n");
  fmt::print("machine: half of what two such steps at once take, each in a thread and on a model of its own\n");
  for (const bool keeps : {false, true}) {
    if (keeps) gpipe::keep_freed_memory();
    fmt::print("\n{:<36} {:>10} {:>12} {:>8} {:>10} {:>10}\n",
               keeps ? "freed memory is kept" : "freed memory is given back", "one", "two stages", "ratio", "one stage",
               "machine");
    run<torch::optim::SGD>("SGD, momentum", torch::optim::SGDOptions(0.01).momentum(0.9), repeats);
    run<torch::optim::Adam>("Adam", torch::optim::AdamOptions(0.001), repeats);
    run<torch::optim::AdamW>("AdamW", torch::optim::AdamWOptions(0.001), repeats);
  }
}
