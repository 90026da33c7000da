// Assembly: the stages of a model and the executor of a proven schedule, ready to run steps.
#pragma once

#include <memory>
#include <vector>

#include "gpipe/execute/cut/cut.h"
#include "gpipe/execute/group/group.h"
#include "gpipe/execute/model/model.h"
#include "gpipe/execute/split/split.h"
#include "gpipe/execute/stage/stage.h"
#include "gpipe/interpret/executor.h"
#include "gpipe/schedule/proof.h"

namespace gpipe::detail {

// Thread-compatible: runs one step at a time.
class Assembly {
 public:
  // What its stages are made of. REQUIRES: all of it outlives the assembly.
  struct Parts {
    const Model& model;
    const Cut& cut;
    const Split& split;
    Group& group;
    bool is_training;
    DeferredWeights deferred_weights;
  };

  // Makes the stages of this process only. Throws as Stage does. `number` is for the caller's use.
  Assembly(const Parts& parts, std::shared_ptr<const ProvenSchedule> proven, int number);

  int number() const { return number_; }
  const Schedule& schedule() const { return executor_->schedule(); }
  // Null if it is another rank's.
  Stage* first() const { return stages_.front().get(); }
  Stage* last() const { return stages_.back().get(); }
  Stage* stage(int index) const { return stages_[static_cast<std::size_t>(index)].get(); }
  // The stages of this process.
  std::vector<Stage*> own_stages() const;

  // REQUIRES: `settings` outlives the step.
  void begin_step(const StepSettings& settings);
  void end_step();
  // Runs the actions of that phase, in order with what the caller has enqueued on the stages' devices before and will
  // enqueue after. See Executor.
  Timeline run(Workers& workers, Phase phase, const Executor<Stage>::Around& around, const WatchdogOptions& watchdog);

 private:
  const int number_;
  std::vector<std::unique_ptr<Stage>> stages_;  // null: another rank's
  std::unique_ptr<Executor<Stage>> executor_;
};

}  // namespace gpipe::detail
