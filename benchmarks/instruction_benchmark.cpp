// Runs steps of a tiny chain under callgrind, which counts their instructions. scripts/bench-instructions calls it.
//
//   instruction_benchmark plain|pipeline|norms SCHEDULE K STEPS
//
//   plain      the operations alone, in one thread, with the graph cut where the stages of that schedule meet
//   pipeline   train_step with K workers
//   norms      the same, with a deferred batch norm behind each layer
//
// Prints the actions and the parameter tensors of a step. Only the steps are counted: valgrind --tool=callgrind
// --instr-atstart=no. The counts of the caller's thread, see --separate-threads=yes, are what is not part of an action.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <valgrind/callgrind.h>

#include <cstdlib>
#include <string>

#include "benchmarks/tiny_chain.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kWarmUpSteps = 2;

template <typename Step>
void count(int num_steps, const Step& step) {
  for (int index = 0; index < kWarmUpSteps; ++index) step();
  CALLGRIND_START_INSTRUMENTATION;
  for (int index = 0; index < num_steps; ++index) step();
  CALLGRIND_STOP_INSTRUMENTATION;
}

void run(const std::string& what, const std::string& schedule, int num_workers, int num_steps) {
  const Norms norms = what == "norms" ? Norms::kAfterEachLayer : Norms::kNone;
  Pipeline pipeline = make_pipeline(num_workers, schedule, norms);
  const TinyBatch batch;
  if (what == "plain") {
    const Linears linears = linears_of(pipeline);
    count(num_steps, [&] { plain_step(linears, pipeline->layers_per_stage(), batch.input, batch.target); });
    return;
  }
  count(num_steps, [&] { pipelined_step(pipeline, batch); });
  std::size_t num_actions = 0;
  for (const WorkerTimeline& worker : pipeline->last_timeline().workers) num_actions += worker.spans.size();
  fmt::print("{} {}\n", num_actions, pipeline->parameters().size());
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: instruction_benchmark plain|pipeline|norms SCHEDULE K STEPS\n");
    return 1;
  }
  at::set_num_threads(1);
  gpipe::benchmarks::run(argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
}
