// Assembly: the stages of a partitioned model and the executor of a proven schedule, ready to run steps.
#pragma once

#include <memory>
#include <vector>

#include "gpipe/execute/executor.h"
#include "gpipe/execute/ranks.h"
#include "gpipe/execute/stage.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/tie.h"
#include "gpipe/plan/profile.h"
#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// A model that has been cut into stages.
struct PartitionedModel {
  const std::vector<ChainLayer>& layers;
  const std::vector<int>& layers_per_stage;
  const std::vector<SkipProfile>& skips;
  const std::vector<Tie>& ties;
  const std::vector<Rematerialization>& rematerialization;      // of the stages; empty: none
  const std::vector<std::shared_ptr<MemoryAccount>>& accounts;  // of the stages; empty: memory is not measured
  const std::vector<std::shared_ptr<StageStream>>&
      streams;  // of the stages; empty: they compute where their inputs are
};

// The skips and ties that go from stage to stage.
Routes make_routes(const PartitionedModel& model);

// Thread-compatible: runs one step at a time.
class Assembly {
 public:
  // Proves the schedule with the model's routes; throws ScheduleError, and as Stage does. With `ranks` it has the stages of
  // this rank only. `number` is the caller's.
  Assembly(const PartitionedModel& model, const Schedule& schedule, const Ranks* ranks, int number);

  int number() const { return number_; }
  // Null if it is another rank's.
  Stage* first() { return stages_.front().get(); }
  Stage* last() { return stages_.back().get(); }
  Stage* stage(std::size_t index) { return stages_[index].get(); }
  Executor<Stage>& executor() { return *executor_; }

  // REQUIRES: `settings` outlives the step.
  void begin_step(const StepSettings& settings);
  void end_step();
  // See Stage.
  void follow_caller() const;
  void lead_caller() const;

 private:
  const int number_;
  std::vector<std::unique_ptr<Stage>> stages_;  // null: another rank's
  std::unique_ptr<Executor<Stage>> executor_;
};

}  // namespace gpipe
