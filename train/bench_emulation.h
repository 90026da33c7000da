// Emulation: what a pipeline would take on K processors like this one, for tables that need more of them than there
// are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "train/bench_emulation_report.h"
#include "train/bench_workload.h"

namespace gpipe::train {

// Note [Emulation]
// Every action of a step is executed for real, on the tensors that it has in a pipeline, with the graph cut where the
// stages meet, in one thread; each is timed by the processor time of that thread. The simulator then places the actions
// on K workers, each with the median of its stage and kind. So what is emulated is that the workers share nothing, no
// cache and no memory bandwidth, and that a message takes what the interconnect says. What the pipeline itself costs an
// action is not in it: see docs/performance.md.

struct EmulationOptions {
  std::vector<int> num_stages = {2, 4, 8};
  std::vector<int> num_micro_batches = {1, 4, 32};
  std::string schedule = "gpipe";
  Recompute recompute = Recompute::kNever;
  int num_repeats = 3;
};

// A loss that is not the plain loop's: a defect.
class BenchError : public Error {
 public:
  using Error::Error;
};

// 100 Gbit/s with 5 us, 1 Gbit/s with 50 us.
LinkCosts fast_interconnect();
LinkCosts slow_interconnect();

// The models of the GPipe paper in miniature, as deep as there. REQUIRES: a name of the list.
const std::vector<std::string>& emulated_workload_names();
Workload make_emulated_workload(const std::string& name, bool quick);

// Throws as `plan` does if a model has too few layers, and BenchError if a loss has not the plain loop's bits.
// `progress` is called before every step with how many are done and how many there are.
Emulation emulate(const Workload& workload, const EmulationOptions& options,
                  const std::function<void(int num_done, int num_all)>& progress);

}  // namespace gpipe::train
