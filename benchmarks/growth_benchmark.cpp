// Whether a step grows as its work does: in proportion to the micro-batches and to the layers, and whether the memory of
// a stage under 1F1B depends on the number of micro-batches.
//
//   growth_benchmark [turns]         default: 9; about a minute
//
// Linear layers of 32 x 32 on micro-batches of 2 rows, which take so little that what grows faster shows. Each row is
// measured in turns with the first of its table; `CPU` is processor time of all threads for one layer of one
// micro-batch, and `ratio` that of the first row.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kWidth = 32;
constexpr int kRowsPerMicroBatch = 2;
constexpr int kNumWorkers = 2;
constexpr int kLeastPiecesPerTurn = 64 * 1024;  // layers of micro-batches

struct Size {
  int num_layers;
  int num_micro_batches;
};

class Training {
 public:
  Training(const Size& size, const std::string& schedule, Recompute recompute)
      : size_(size),
        pipeline_(chain_of(size.num_layers), PipelineOptions(kNumWorkers)
                                                 .num_micro_batches(size.num_micro_batches)
                                                 .schedule(schedule)
                                                 .recompute(recompute)
                                                 .balance({size.num_layers / 2, size.num_layers - size.num_layers / 2})
                                                 .measure_memory(true)),
        input_(torch::randn({std::int64_t{kRowsPerMicroBatch} * size.num_micro_batches, kWidth})) {
    step();
  }

  // Of one layer of one micro-batch.
  Seconds measure_piece() {
    const int steps = std::max(1, kLeastPiecesPerTurn / (size_.num_layers * size_.num_micro_batches));
    const Seconds seconds = measure([&] {
      for (int index = 0; index < steps; ++index) step();
    });
    const double pieces = static_cast<double>(steps) * size_.num_layers * size_.num_micro_batches;
    return {seconds.wall / pieces, seconds.cpu / pieces};
  }

  // Beyond the batch itself, of which the first stage holds the inputs and the last one the targets.
  std::int64_t most_bytes_of_a_stage() const {
    std::int64_t most = 0;
    for (const StageMemory& stage : pipeline_->memory()) most = std::max(most, stage.peak_bytes);
    return most;
  }

 private:
  static LayerChain chain_of(int num_layers) {
    LayerChain chain;
    for (int layer = 0; layer < num_layers; ++layer) {
      chain.add<torch::nn::Linear>(fmt::format("linear{}", layer), kWidth, kWidth);
    }
    return chain;
  }

  void step() {
    pipeline_->train_step(input_, input_, [](const at::Tensor& output, const at::Tensor& wanted) {
      return at::mse_loss(output, wanted);
    });
  }

  const Size size_;
  Pipeline pipeline_;
  const at::Tensor input_;
};

void run(const std::string& schedule, Recompute recompute, const std::vector<Size>& sizes, int turns) {
  Training first(sizes.front(), schedule, recompute);
  for (const Size& size : sizes) {
    Training training(size, schedule, recompute);
    Samples of_first;
    Samples samples;
    std::vector<double> ratios;
    for (int turn = 0; turn < turns; ++turn) {
      of_first.add(first.measure_piece());
      samples.add(training.measure_piece());
      ratios.push_back(samples.cpu.back() / of_first.cpu.back());
    }
    fmt::print("{:<8} {:>10} {:>7} {:>14} {:>10.3f} {:>10.3f} {:>8.3f} {:>12.1f}\n", schedule,
               recompute == Recompute::kAlways ? "always" : "never", size.num_layers, size.num_micro_batches,
               1e6 * median(samples.cpu), 1e6 * median(samples.wall), median(ratios),
               static_cast<double>(training.most_bytes_of_a_stage()) / 1024);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  using gpipe::Recompute;
  gpipe::keep_freed_memory();
  const int turns = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  at::set_num_threads(1);
  fmt::print("Two stages; us a layer of a micro-batch, medians of {} turns; the limit of the ratio is 1.10\n\n", turns);
  fmt::print("{:<8} {:>10} {:>7} {:>14} {:>10} {:>10} {:>8} {:>12}\n", "schedule", "recompute", "layers",
             "micro-batches", "CPU us", "wall us", "ratio", "stage KiB");
  const std::vector<gpipe::benchmarks::Size> micro_batches = {{16, 32}, {16, 64}, {16, 128}, {16, 512}, {16, 1024}};
  const std::vector<gpipe::benchmarks::Size> layers = {{16, 32}, {32, 32}, {64, 32}, {125, 32}, {250, 32}, {500, 32}};
  for (const auto* sizes : {&micro_batches, &layers}) {
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1"}) {
      gpipe::benchmarks::run(schedule, Recompute::kNever, *sizes, turns);
    }
    gpipe::benchmarks::run("1f1b", Recompute::kAlways, *sizes, turns);
    fmt::print("\n");
  }
}
