// One run of `gpipe bench`: all contenders for one workload and one number of micro-batches, in turns.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "train/bench_results.h"
#include "train/bench_workload.h"

namespace gpipe::train {

struct BenchOptions {
  std::vector<std::string> workloads;  // empty: all
  std::vector<int> num_stages = {1, 2};
  std::vector<int> num_micro_batches = {8};
  std::vector<std::string> schedules = {"gpipe", "1f1b", "zb-v"};
  std::vector<Recompute> recompute = {Recompute::kNever};
  std::vector<std::string> rows;  // kinds; empty: all
  int num_repeats = 5;
  bool quick = false;
  std::string python = "/usr/bin/python3";
};

// The kinds of rows, in their order: "plain", "data-parallel", "threads", "processes", "peers".
const std::vector<std::string>& bench_row_kinds();

// Called before every step with how many are done and how many there are.
using BenchProgress = std::function<void(int num_done, int num_all)>;

// What cannot run is a row that says why. Changes the number of intra-op threads of this thread to one.
BenchRun run_bench(const Workload& workload, int num_micro_batches, const BenchOptions& options,
                   const BenchProgress& progress);

// A rank of a row over processes: takes its turns until there are no more. See Note [Turns].
void run_bench_rank(const std::string& folder);

}  // namespace gpipe::train
