// What was emulated, beside the tables of the GPipe paper and of torchgpipe: as text, as Markdown and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/bench_results.h"

namespace gpipe::train {

// A step of K workers, emulated or real.
struct StepShares {
  double seconds = 0;
  // Of workers x seconds; they add up to 1.
  double useful = 0;
  double recompute = 0;
  double load_imbalance = 0;
  double bubble = 0;
  double communication = 0;
};

struct EmulatedStep {
  int num_stages = 0;
  int num_micro_batches = 0;
  std::vector<int> layers_per_stage;
  double alone_seconds = 0;  // of forwards and backwards, one after the other
  StepShares fast;
  StepShares slow;
};

struct Emulation {
  std::string workload;
  std::string description;
  std::string schedule;
  std::string recompute;
  int num_repeats = 1;
  std::vector<EmulatedStep> steps;     // by M, then by K
  std::optional<StepShares> measured;  // of two real workers at the most micro-batches, where there are two processors
};

// Throughputs are normalised as the paper's are: Table 2 by that of the fewest workers at the fewest micro-batches,
// Table 3 by that of the fewest workers at the most.
std::string emulation_text(const Emulation& emulation);
std::string emulation_markdown(const BenchMachine& machine, const std::vector<Emulation>& emulations);
std::string emulation_json(const BenchMachine& machine, const std::vector<Emulation>& emulations);

}  // namespace gpipe::train
