// Advice: what would have made a training faster, in sentences, from what was measured of it.
#pragma once

#include <string>
#include <vector>

#include "gpipe/plan/profile.h"
#include "gpipe/schedule/recompute.h"
#include "train/measured_steps.h"

namespace gpipe::train {

// What the options of the command made of the training, as far as other options are tried.
struct TrainedRun {
  MeasuredSteps steps;
  int num_workers = 1;
  std::vector<int> layers_per_stage;
  // Of all layers, in other units perhaps: it tells how the seconds of a stage divide over its layers. Without layers,
  // they are all taken for equal.
  Profile profile;
  // The schedule's name. Empty if it has none, or if what it recomputes has no name: then nothing else is forecast.
  std::string schedule;
  Recompute recompute = Recompute::kNever;  // not kAuto
  // What was given, and has to go with what is advised.
  bool has_chunks = false;
  bool has_balance = false;
  bool has_plan = false;
  bool has_memory_limit = false;
  bool is_launched = false;        // the workers are processes that somebody else has started
  bool chooses_recompute = false;  // which no balance can be given with
  int most_micro_batches = 1;      // that the command takes with the rest of its options
  int num_rows = 0;                // of the mini-batch; 0 = it varies
  std::string size_option;         // of the mini-batch, such as "--batch-size"
  std::string preparing_option;    // that was given and makes batches take long, such as "--augment"; else empty
  int num_cores = 1;               // of this machine
  int num_local_workers = 1;       // on it
  int threads_per_stage = 1;
};

// Note [Advice]
// ~~~~~~~~~~~~~
// What is advised is forecast: the mean seconds of the run's actions go into the simulator, with other numbers of
// micro-batches of the same mini-batch, other schedules and other cuts. What counts is how much faster the simulator
// finds these than the run itself; it applies to the part of a step that is forward and backward.
//
// With twice as many micro-batches, an action is taken to last half as long, but for the fixed seconds of the profile.
// If it does not know them, that may be too little, and the forecast says "about"; there is none if forwards became
// shorter than a millisecond. Schedules of whole backwards are forecast if these were measured. The two parts of a
// split one that were neither measured nor profiled are taken for half of the whole, and layers that were not profiled
// for equal; then, too, the forecast says "about".
//
// At most two sentences, the one that promises most first; none if nothing is at least 1.03 times as fast, or if less
// than a handful of steps were measured. Each promises for itself, against the run as it was: the second one begins
// with "or instead". Workers that share cores say nothing about each other's times: if there are more of them than
// cores, or if their actions took clearly more time than the processor gave them, that is all that is said.
//
//   bubble 15.2 %: try --micro-batches 16 (about 1.12x predicted) or --schedule zb-v (1.08x predicted)
std::vector<std::string> advice(const TrainedRun& run);

}  // namespace gpipe::train
