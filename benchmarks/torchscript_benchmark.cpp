// What it costs, and what it gives, to train a module from TorchScript in pieces.
//
//   torchscript_benchmark FOLDER NAME... [--turns N]       default: 15 turns
//
// FOLDER is what `tests/zoo/export_zoo.py FOLDER --benchmark` has written, NAME a network in it. For each, in turns:
//   K=1     a pipeline of one stage over forward and backward() of the whole module, both in one thread with the same
//           settings (no optimization by libtorch's graph executor): wall time, and processor time of the process,
//           which depends less on what else the machine does. The limit is 1.03
//   K=2     the speed-up of two stages, which are split by the profile of the first batch, with 8 micro-batches; s2,
//           the work of two such loops at once over that of one; and the share of 2M / (M + 1) x s2 / 2. The limit is
//           0.93
// Medians of the ratios of each turn.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/zoo/network.h"
#include "tests/zoo/speed.h"

int main(int argc, char** argv) {
  gpipe::zoo::Effort effort{15, 0.3};
  std::vector<std::string> names;
  for (int index = 1; index < argc; ++index) {
    if (std::string(argv[index]) == "--turns" && index + 1 < argc) {
      effort.turns = std::max(1, std::atoi(argv[++index]));
    } else {
      names.emplace_back(argv[index]);
    }
  }
  if (names.size() < 2) {
    fmt::print(stderr, "usage: torchscript_benchmark FOLDER NAME... [--turns N]\n");
    return 2;
  }
  at::set_num_threads(1);
  torch::jit::setGraphExecutorOptimize(false);
  fmt::print("M = 8; medians of {} turns\n\n", effort.turns);
  fmt::print("{:<44} {:>9} {:>9} {:>9} {:>9} {:>6} {:>9}  {}\n", "network", "step ms", "K=1 wall", "K=1 CPU", "K=2",
             "s2", "of bound", "layers");
  for (std::size_t index = 1; index < names.size(); ++index) {
    try {
      const auto network = gpipe::zoo::read_network(names[0], names[index]);
      const auto speed = gpipe::zoo::measure_speed(network, effort);
      fmt::print("{:<44} {:>9.1f} {:>9.3f} {:>9.3f} {:>9.3f} {:>6.2f} {:>9.3f}  {}\n", network.title,
                 speed.step_milliseconds(), speed.overhead(), speed.processor_overhead(), speed.speed_up(),
                 speed.scaling(), speed.share_of_bound(), fmt::join(speed.balance, "+"));
      std::fflush(stdout);
    } catch (const std::exception& error) {
      fmt::print(stderr, "torchscript_benchmark: {}: {}\n", names[index], error.what());
      return 1;
    }
  }
}
