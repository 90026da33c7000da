#include "tests/zoo/speed.h"

#include <algorithm>
#include <cmath>
#include <thread>

namespace gpipe::zoo {
namespace {

constexpr int kMicroBatches = 8;

// The whole module, trained as by a program without gpipe.
class PlainLoop {
 public:
  explicit PlainLoop(const Network& network) : network_(network), module_(network.load()) {
    for (const auto& parameter : module_.named_parameters()) parameters_.push_back(parameter.value);
  }

  void step() {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    const auto inputs = split_batch(network_.inputs, kMicroBatches);
    const auto targets = split_batch(network_.targets, kMicroBatches);
    for (std::size_t index = 0; index < inputs.size(); ++index) {
      const Tensors outputs =
          flatten(module_.forward(arguments_of(module_, network_.input_names, inputs[index].tensors)));
      (loss(outputs, targets[index].tensors).loss / static_cast<double>(inputs.size())).backward();
    }
  }

 private:
  const Network& network_;
  torch::jit::Module module_;
  Tensors parameters_;
};

template <typename Step>
benchmarks::Seconds measure_steps(int num_steps, const Step& step) {
  return benchmarks::measure([&] {
    for (int index = 0; index < num_steps; ++index) step();
  });
}

double median_ratio(const std::vector<double>& values, const std::vector<double>& baseline) {
  std::vector<double> ratios;
  for (std::size_t turn = 0; turn < values.size(); ++turn) ratios.push_back(values[turn] / baseline[turn]);
  return benchmarks::median(ratios);
}

}  // namespace

double Speed::step_milliseconds() const { return 1e3 * benchmarks::median(whole.wall) / steps_per_turn; }
double Speed::overhead() const { return median_ratio(one_stage.wall, whole.wall); }
double Speed::processor_overhead() const { return median_ratio(one_stage.cpu, whole.cpu); }
double Speed::speed_up() const { return median_ratio(whole.wall, two_stages.wall); }
double Speed::scaling() const { return 2 * median_ratio(whole.wall, two_loops.wall); }
double Speed::share_of_bound() const {
  return speed_up() / (2.0 * kMicroBatches / (kMicroBatches + 1) * scaling() / 2);
}

Speed measure_speed(const Network& network, const Effort& effort) {
  PlainLoop plain(network);
  PlainLoop other(network);
  Pipeline one_stage(network.cut(), PipelineOptions(1).num_micro_batches(kMicroBatches));
  Pipeline two_stages(network.cut(), PipelineOptions(2).num_micro_batches(kMicroBatches));
  const auto pipelined_step = [&](Pipeline& pipeline) {
    pipeline->zero_grad();
    pipeline->train_step(network.inputs, network.targets, loss);
  };
  // What the first steps do besides is not measured: the layers are profiled, and memory is new.
  plain.step();
  other.step();
  pipelined_step(one_stage);
  pipelined_step(two_stages);
  const double step_seconds = measure_steps(1, [&] { plain.step(); }).wall;
  const int num_steps = std::max(1, static_cast<int>(std::ceil(effort.seconds_per_turn / step_seconds)));
  Speed speed;
  speed.steps_per_turn = num_steps;
  for (int turn = 0; turn < effort.turns; ++turn) {
    speed.whole.add(measure_steps(num_steps, [&] { plain.step(); }));
    speed.one_stage.add(measure_steps(num_steps, [&] { pipelined_step(one_stage); }));
    speed.two_stages.add(measure_steps(num_steps, [&] { pipelined_step(two_stages); }));
    speed.two_loops.add(benchmarks::measure([&] {
      std::thread thread([&] { measure_steps(num_steps, [&] { other.step(); }); });
      measure_steps(num_steps, [&] { plain.step(); });
      thread.join();
    }));
  }
  speed.balance = two_stages->layers_per_stage();
  return speed;
}

}  // namespace gpipe::zoo
