// Trials: partitions, recompute modes and rematerializations of one schedule, run in the simulator.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "gpipe/plan/plan.h"
#include "gpipe/schedule/long_schedule.h"

namespace gpipe::detail {

struct Trial {
  std::vector<int> layers_per_stage;
  std::vector<Recompute> modes;  // one per stage
  double step_seconds = 0;
  std::vector<std::int64_t> peak_bytes;                   // per worker
  std::vector<Rematerialization> rematerialization = {};  // one per stage, or none at all
};

// By more than rounding.
bool is_faster(double seconds, double than_seconds);

// Makes `trial` the best if there is one, and it is faster or the first.
void keep_faster(std::optional<Trial>& best, std::optional<Trial> trial);

class PlanTrials {
 public:
  // REQUIRES: `options` names a schedule, its chunks and micro-batches that exist; `profile` and `options` outlive
  // this.
  PlanTrials(const Profile& profile, const PlanOptions& options);

  // Empty if a worker would not fit. `costs` are those of the stages.
  std::optional<Trial> run(const std::vector<int>& layers_per_stage, const Costs& costs,
                           const std::vector<Recompute>& modes);
  // With the modes that recompute the least, if the options leave them open, else with those of the options.
  std::optional<Trial> run(const std::vector<int>& layers_per_stage);

  // The fastest of `found` and of the partitions that are tried, all or those near `seeds`: see Note [Candidates].
  std::optional<Trial> improve(std::optional<Trial> found, std::vector<Trial> seeds);

  // The layers per stage whose slowest stage is the fastest, if each stage takes the first of never, except-last and
  // always in which it fits; messages are not counted. Empty if nothing fits. With several stages a worker, each gets
  // an equal part of the limit. Takes O(stages · layers²). REQUIRES: there is a memory limit.
  std::vector<int> mixed_layers_per_stage() const;

  int num_stages() const { return base_.num_stages(); }
  const LongSchedule& base() const { return base_; }  // without recompute
  // The schedule with one mode per stage; trials ask for few of them, again and again. Valid until the next call.
  const LongSchedule& with(const std::vector<Recompute>& modes);
  Costs costs_of(const std::vector<int>& layers_per_stage) const;

 private:
  std::optional<std::vector<Recompute>> lightest_modes(const Costs& costs);
  bool are_few() const;
  std::int64_t actions_a_trial() const;

  const Profile& profile_;
  const PlanOptions& options_;
  const LongSchedule base_;
  std::map<std::vector<Recompute>, LongSchedule> by_modes_;
  std::vector<int> index_on_worker_;            // of each stage
  std::vector<std::vector<Recompute>> combos_;  // modes of the stages of a worker, the ones without recompute first
};

// Note [Rematerialized stages]
// Under a memory limit, each worker takes one of these for its stages; first the one that fits with the least seconds
// of recompute:
//   nothing is dropped
//   some layers are dropped and run again in B, the fastest such runs for the micro-batches that are held at a time
//   all layers are recomputed by R, for all micro-batches or for all but the last; nothing or some are dropped in R
// R runs while B waits for its gradient, a run of layers within B does not: so every worker then tries the others in
// the simulator. With several stages a worker, each gets an equal part of the limit for its runs; or they begin with
// the modes that recompute the least, and each that recomputes drops layers instead as far as the others leave it room.
//
// A stage that uses skips keeps all its layers or recomputes them all: its costs do not say who holds a skip. So do all
// stages of a schedule that splits the backward.
//
// The fastest such trial of these partitions, and of those near it, a layer away at one boundary at a time; empty if
// none fits. Not all are tried if that would take too long. REQUIRES: `options` names a schedule, its chunks and
// micro-batches that exist, and has a memory limit; `profile` has passed check_profile.
std::optional<Trial> fastest_rematerialized(const Profile& profile, const PlanOptions& options,
                                            const std::vector<std::vector<int>>& partitions);

}  // namespace gpipe::detail
