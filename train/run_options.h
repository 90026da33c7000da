// The options that every training task shares: the pipeline, the optimizer, the files.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/gpipe.h"
#include "train/trainer.h"

namespace gpipe::train {

// What there is to know about mini-batches for advice, see TrainedRun.
struct BatchFacts {
  std::int64_t num_rows = 0;            // of a replica's; 0 = it varies
  std::int64_t most_micro_batches = 1;  // that the task takes
  std::string size_option;
  std::string preparing_option;
};

struct RunOptions {
  int num_stages = 0;  // 0: as many as there are processes, and 2 without a launcher
  int num_micro_batches = 8;
  std::string schedule = "1f1b";
  int chunks = 0;
  Recompute recompute = Recompute::kNever;
  std::int64_t memory_limit_bytes = 0;  // of a stage; 0 = none
  std::vector<int> balance;
  std::string plan_path;  // instead of those above; read into trainer.plan
  int threads_per_stage = 1;
  std::uint64_t seed = 0;
  TrainerOptions trainer;
  BatchFacts batches;  // of the task
};

// Their schedule, and its proof, are made before the size of a mini-batch is known.
constexpr int kMostMicroBatches = 65536;

// A whole number from 1 to the most micro-batches; a number from 0 to below 1. Throw InvalidArgument.
int parse_micro_batches(std::string_view word);
// Hypotheses of a beam search, from 1 to 1000.
int parse_beam(std::string_view word);
double parse_fraction(std::string_view word);
// "a,b"
std::vector<std::string> parse_paths(std::string_view words);

// What a launcher says besides the options: the number of stages, if that is left open, and whether this is a restart,
// which goes on with what the start before has left. To be called first. Throws EnvironmentError.
void take_from_launcher(RunOptions& options);

// Values that are in `options` already are the defaults of the task, and the help shows them.
void add_run_options(CLI::App& command, RunOptions& options);

// Reads the plan, if there is one, into the options. Throws UsageError, naming the file and the place, for what cannot
// be read or parsed.
void read_plan(RunOptions& options);

// Throws UsageError if there are more stages, or fewer, than a launcher has started processes for. Before the ranks
// meet, so that nobody waits for the others, and one of them tells it.
void check_num_ranks(const RunOptions& options);

PipelineOptions pipeline_options(const RunOptions& options);

// Throws UsageError if a file that is to be written is there already, or could not be created; and for options that
// contradict each other.
void check_run_options(const RunOptions& options);

}  // namespace gpipe::train
