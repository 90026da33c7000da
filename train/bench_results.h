// What a benchmark found, as a table, as Markdown and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/bench_noise.h"
#include "train/bench_statistics.h"

namespace gpipe::train {

struct BenchPeak {
  std::int64_t fullest_bytes = 0;  // of the worker, replica or thread that has most; 0: only the sum is known
  std::int64_t total_bytes = 0;    // of all of them
};

// What was run, side by side with others.
struct BenchRow {
  std::string name;                    // "1f1b, K=2", "plain, 2 threads"
  std::string kind;                    // "plain", "data-parallel", "threads", "processes", "peer"
  int num_stages = 1;                  // workers
  int num_threads = 1;                 // intra-op, of each worker
  int num_micro_batches = 1;           // of each replica
  std::string schedule;                // empty: none
  std::string recompute;               // empty: none
  std::string layers_per_stage;        // "5+5"; empty: none
  std::optional<std::string> why_not;  // it did not run; what follows is then empty
  Spread seconds;                      // of a step
  Spread speed_up;                     // over the plain loop's step of the same turn
  std::optional<Spread> own_speed_up;  // over the plain loop of a peer's own language
  std::optional<double> bound;         // that the schedule has on this machine: see docs/performance.md
  double cpu_seconds = 0;              // of all threads, median; 0: in processes of its own
  std::optional<double> bubble;        // median share of the workers' time in which they waited
  std::optional<double> inside;        // median share of the step from the first action's start to the last one's end
  std::optional<BenchPeak> peak;
  std::optional<std::int64_t> predicted_bytes;  // of the fullest worker
  double loss = 0;
  std::optional<bool> same_loss;  // bits as the plain loop's; nothing where other bits are right
};

// The rows that were run in turns.
struct BenchRun {
  std::string workload;
  std::string description;
  int num_micro_batches = 1;
  int num_repeats = 1;
  int steps_per_turn = 1;
  Noise noise;
  std::vector<BenchRow> rows;  // the first is the plain loop that the others are compared with
};

struct BenchMachine {
  std::string processor;
  int num_processors = 1;
  std::string libtorch;
  std::string gpipe;
};

// The rows of `run` whose losses are not the plain loop's, though they have to be.
std::vector<std::string> rows_with_other_losses(const BenchRun& run);

std::string bench_text(const BenchRun& run);
std::string bench_markdown(const BenchMachine& machine, const std::vector<BenchRun>& runs);
std::string bench_json(const BenchMachine& machine, const std::vector<BenchRun>& runs);

}  // namespace gpipe::train
