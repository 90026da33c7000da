// Trials: partitions and recompute modes of one schedule, run in the simulator.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/plan/plan.h"
#include "gpipe/schedule/long_schedule.h"

namespace gpipe {

struct Trial {
  std::vector<int> layers_per_stage;
  std::vector<Recompute> modes;  // one per stage
  double step_seconds = 0;
  std::vector<std::int64_t> peak_bytes;                   // per worker
  std::vector<Rematerialization> rematerialization = {};  // one per stage, or none at all
};

// The part of a stage's micro-batches that it recomputes.
double recompute_share(Recompute mode, int num_micro_batches);

// By more than rounding.
bool is_faster(double seconds, double than_seconds);

// A schedule with each choice of recompute modes that was asked for: trials ask for few of them, again and again.
class RecomputedSchedules {
 public:
  explicit RecomputedSchedules(LongSchedule base) : base_(std::move(base)) {}

  const LongSchedule& base() const { return base_; }  // without recompute
  // One mode per stage. Valid until the next call.
  const LongSchedule& with(const std::vector<Recompute>& modes);

 private:
  LongSchedule base_;
  std::map<std::vector<Recompute>, LongSchedule> by_modes_;
};

class PlanTrials {
 public:
  // REQUIRES: `options` names a schedule, its chunks and micro-batches that exist; `profile` and `options` outlive
  // this.
  PlanTrials(const Profile& profile, const PlanOptions& options);

  // Empty if a worker would not fit.
  std::optional<Trial> run(const std::vector<int>& layers_per_stage, const std::vector<Recompute>& modes);
  // With the modes that recompute the least, if the options leave them open, else with those of the options.
  std::optional<Trial> run(const std::vector<int>& layers_per_stage);

  // The fastest of `found` and of the partitions that are tried, all or those near `seeds`: see Note [Candidates].
  std::optional<Trial> improve(std::optional<Trial> found, std::vector<Trial> seeds);

  int num_stages() const { return base_.num_stages(); }

 private:
  std::optional<std::vector<Recompute>> lightest_modes(const Costs& costs);
  std::optional<Trial> run(const std::vector<int>& layers_per_stage, const Costs& costs,
                           const std::vector<Recompute>& modes);
  Costs costs_of(const std::vector<int>& layers_per_stage) const;
  bool are_few() const;
  void try_all(std::vector<int>& layers_per_stage, int num_layers, int num_stages, std::optional<Trial>& best);
  void climb(Trial& best, std::int64_t& actions_left);
  std::int64_t actions_a_trial() const;

  const Profile& profile_;
  const PlanOptions& options_;
  RecomputedSchedules schedules_;
  const LongSchedule& base_;                    // without recompute
  std::vector<int> index_on_worker_;            // of each stage
  std::vector<std::vector<Recompute>> combos_;  // modes of the stages of a worker, the ones without recompute first
};

}  // namespace gpipe
