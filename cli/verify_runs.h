// The runs of `gpipe verify`: how the program is run, once in each way that is to be compared.
#pragma once

#include <string>
#include <vector>

#include "gpipe/recording/recorded_run.h"
#include "gpipe/recording/verify_request.h"
#include "gpipe/schedule/recompute.h"

namespace gpipe::cli {

struct VerifiedWays {
  std::vector<int> stages = {1, 2, 4};
  std::vector<std::string> schedules = {"gpipe", "1f1b", "zb-v"};
  std::vector<Recompute> recompute = {Recompute::kNever, Recompute::kAlways};
  std::vector<int> processes = {2};
  std::vector<int> replicas;
};

// One way to run it.
struct ProgramSettings {
  std::string name;
  detail::VerifyRequest request;  // without its folder
  int num_processes = 0;          // that `gpipe launch` starts; 0: it is started by itself
  int num_replicas = 1;
  std::string not_possible;  // why it cannot be run; empty: it can
};

// As the program has it: what is known of a program before anything else is.
ProgramSettings as_written(int num_steps);

// What one needs to know of the program to plan further runs, from the run as it is written.
struct ProgramShape {
  int num_layers = 0;                  // of the pipeline with the fewest
  std::vector<int> num_micro_batches;  // by pipeline
  int own_stages = 0;                  // of the world that the program makes itself; 0: it makes none
  std::string description;             // "2 stages, 1f1b, recompute never"
};
ProgramShape shape_of(const detail::RecordedRun& run);

// What the others are compared with: one stage, or the program as it is if it brings its own launcher.
ProgramSettings reference_settings(const ProgramShape& shape, int num_steps);
// On threads, then over processes.
std::vector<ProgramSettings> list_runs(const VerifiedWays& ways, const ProgramShape& shape, int num_steps);

// Replicas of one stage; of two; and one pipeline with the micro-batches of all replicas.
struct ReplicaRuns {
  int num_replicas = 1;
  ProgramSettings of_one_stage;
  ProgramSettings of_two_stages;
  ProgramSettings alone;
};
std::vector<ReplicaRuns> list_replica_runs(const VerifiedWays& ways, const ProgramShape& shape, int num_steps);

}  // namespace gpipe::cli
