// What it costs to split a backward: processor seconds of the input gradient and the weight gradient together against
// those of the whole backward, and the bytes that are held in between.
//
//   split_benchmark [repeats]       default: 9; about a minute
//
// Not on Google Benchmark: a ratio means something only if its two sides run in turns.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/execute/freed_memory.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/split_backward.h"
#include "train/bench_cnn.h"
#include "train/bench_transformer.h"

namespace gpipe::benchmarks {
namespace {

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() { register_module("lstm", lstm); }
  torch::Tensor forward(const torch::Tensor& input) { return std::get<0>(lstm->forward(input)); }
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(256, 256).num_layers(2)};
};
TORCH_MODULE(Recurrent);

struct Workload {
  std::string name;
  torch::nn::Sequential layers;
  torch::Tensor input;
};

std::vector<Workload> workloads() {
  return {{"4 Transformer blocks, batch 4", torch::nn::Sequential(Block(), Block(), Block(), Block()),
           torch::randn({4, kSequence, kWidth})},
          {"4 basic blocks of 64, 8 x 32 x 32",
           torch::nn::Sequential(BasicBlock(64), BasicBlock(64), BasicBlock(64), BasicBlock(64)),
           torch::randn({8, 64, 32, 32})},
          {"2 LSTM layers of 256, 32 steps, batch 8", torch::nn::Sequential(Recurrent()), torch::randn({32, 8, 256})},
          {"16 linear layers of 64, batch 16",
           [] {
             torch::nn::Sequential layers;
             for (int layer = 0; layer < 16; ++layer) layers->push_back(torch::nn::Linear(64, 64));
             return layers;
           }(),
           torch::randn({16, 64})}};
}

detail::LayerGraph run_forward(Workload& workload, Tensors& grads) {
  Tensors entries = {workload.input.detach()};
  const std::shared_ptr<detail::Boundary> boundary = detail::Boundary::enter(entries, {true});
  const Tensors outputs = {workload.layers->forward(entries.front())};
  entries.clear();
  grads = {torch::ones_like(outputs.front())};
  return {boundary, detail::Roots(outputs)};
}

void run(Workload& workload, int repeats) {
  Samples whole;
  Samples now;
  Samples later;
  std::int64_t graph_bytes = 0;
  std::int64_t between_bytes = 0;
  const auto account = std::make_shared<MemoryAccount>("the layers", 0);
  detail::SplitBackward split(DeferredWeights::kMatrices);
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first warms up, and makes the gradients
    Tensors grads;
    detail::LayerGraph graph = run_forward(workload, grads);
    const Seconds backward = measure([&] {
      graph.roots.backward_from(std::move(grads)).run();
      graph.boundary->take_grads();
    });
    const MemoryScope scope(account);
    graph = run_forward(workload, grads);
    graph_bytes = account->live_bytes();
    detail::ReadyBackward ready;
    const Seconds input_grad = measure([&] {
      ready = split.run_inputs(graph, std::move(grads));
      graph.boundary->take_grads();
    });
    graph = {};
    between_bytes = account->live_bytes();
    const Seconds weight_grad = measure([&] { ready.run(); });
    if (repeat < 0) continue;
    whole.add(backward);
    now.add(input_grad);
    later.add(weight_grad);
  }
  const double backward = median(whole.cpu);
  fmt::print("{:<42} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.3f} {:>10.1f} {:>10.1f}\n", workload.name, 1e3 * backward,
             1e3 * median(now.cpu), 1e3 * median(later.cpu), (median(now.cpu) + median(later.cpu)) / backward,
             static_cast<double>(graph_bytes) / (1 << 20), static_cast<double>(between_bytes) / (1 << 20));
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  gpipe::keep_freed_memory();
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  at::set_num_threads(1);
  torch::manual_seed(1);
  fmt::print("Processor time of backwards, whole and split, in one thread; medians of {} turns\n\n", repeats);
  fmt::print("{:<42} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10}\n", "", "B ms", "I ms", "W ms", "(I+W)/B", "graph MiB",
             "held MiB");
  for (gpipe::benchmarks::Workload& workload : gpipe::benchmarks::workloads()) {
    gpipe::benchmarks::run(workload, repeats);
  }
}
