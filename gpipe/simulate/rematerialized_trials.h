// Rematerialized trials: stages that drop the activations of some of their layers, run in the simulator.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/plan/plan.h"
#include "gpipe/plan/rematerialize.h"
#include "gpipe/simulate/plan_trials.h"

namespace gpipe {

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
class RematerializedTrials {
 public:
  // REQUIRES: `options` names a schedule, its chunks and micro-batches that exist, and has a memory limit; `profile`
  // has passed check_profile; both outlive this.
  RematerializedTrials(const Profile& profile, const PlanOptions& options);

  // With these layers per stage; empty if a worker does not fit, or if too many layers were looked at already.
  std::optional<Trial> run(const std::vector<int>& layers_per_stage);
  // The fastest of `found` and of partitions near it, a layer away at one boundary at a time.
  void climb(std::optional<Trial>& found);

 private:
  // What a stage does and costs.
  struct Setting {
    Recompute mode = Recompute::kNever;
    Rematerialization rematerialization;
    StageCosts costs;
    double recompute_seconds = 0;  // of a micro-batch
  };
  using Choice = std::vector<Setting>;  // of the stages of a worker

  Setting keeping(int stage, Recompute mode) const;
  // With so much of the worker's limit for the stage; empty if that is too little.
  std::optional<Setting> dropping(int stage, Recompute mode, std::int64_t share_bytes);
  std::optional<Rematerialization> runs(int stage, Recompute mode, std::int64_t share_bytes);
  bool fits(int worker, const Choice& choice);
  // Empty if it does not fit.
  std::optional<Choice> same_for_all(int worker, Recompute mode, bool drops);
  void drop_instead(int worker, Choice& choice);
  // All that fit, those with the least recompute first. `recomputed` has the modes that do without dropping.
  std::vector<Choice> choices(int worker, const std::optional<Trial>& recomputed);
  Trial simulated(const std::vector<Setting>& settings);

  const Profile& profile_;
  const PlanOptions& options_;
  PlanTrials plain_;
  RecomputedSchedules schedules_;
  const LongSchedule& base_;  // without recompute
  bool can_drop_ = true;
  std::vector<std::vector<int>> stages_of_worker_;
  std::map<Recompute, std::vector<std::vector<Live>>> live_;  // by mode and stage
  std::int64_t work_ = 0;                                     // so far, on rematerializers
  std::int64_t num_actions_ = 0;                              // so far, simulated
  // Of the partition at hand.
  std::vector<int> layers_per_stage_;
  std::vector<int> begins_;  // the first layer of each stage
  Costs costs_;
  std::map<std::pair<int, int>, Rematerializer> rematerializers_;  // by first layer and the one behind the last
};

}  // namespace gpipe
