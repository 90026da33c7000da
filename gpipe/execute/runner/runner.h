// Runner: the workers of this process, and the assemblies that they run.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "gpipe/execute/cut/cut.h"
#include "gpipe/execute/runner/assembly.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/interpret/workers.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::detail {

// What a step runs of its schedule.
enum class StepMode {
  kForwardOnly,
  kTogether,  // forwards and backwards in the schedule's order
  kUpdating,  // the same, and the updates of the stages
  kApart,     // all forwards; the backwards when the caller comes back with gradients
};

// Steps of the same kind run the same actions.
struct StepKind {
  int num_micro_batches = 0;
  StepMode mode = StepMode::kTogether;
  bool is_training = true;
};

inline bool operator<(const StepKind& a, const StepKind& b) {
  return std::tie(a.num_micro_batches, a.mode, a.is_training) < std::tie(b.num_micro_batches, b.mode, b.is_training);
}

// Thread-compatible.
class Runner {
 private:
  // A schedule, and the assemblies that run it and are not in use.
  struct Pool {
    Schedule schedule;
    std::shared_ptr<const ProvenSchedule> proven;  // null until the first assembly is made
    std::vector<std::unique_ptr<Assembly>> idle;
  };

 public:
  struct GiveBack {
    Pool* pool = nullptr;
    void operator()(Assembly* assembly) const;
  };
  // An assembly to oneself, which is given back when the lease ends. REQUIRES: the runner outlives it.
  using Lease = std::unique_ptr<Assembly, GiveBack>;

  // REQUIRES: `options` outlive it.
  Runner(int num_workers, const PipelineOptions& options);

  Workers& workers() { return workers_; }

  // The actions of such a step. Throws InvalidArgument if the options have none for it.
  Schedule make_schedule(const StepKind& kind, const Cut& cut) const;
  // Whether `prepare` has been called for it.
  bool is_prepared(const StepKind& kind) const { return pools_.count(kind) != 0; }
  void prepare(const StepKind& kind, const Cut& cut);

  // An idle assembly or a new one. In a world of several, all ranks take the same: one of those with the numbers
  // `idle`, which none of them holds for a backward to come. Throws ScheduleError. REQUIRES: the kind is prepared.
  Lease lease(const StepKind& kind, const Assembly::Parts& parts, const std::vector<int>& idle);
  // The numbers of the assemblies that are not in use.
  std::vector<int> idle() const;

 private:
  // The forwards, backwards and recomputes of such a step.
  Schedule recomputed_schedule(const StepKind& kind, const Cut& cut) const;

  const PipelineOptions& options_;
  Workers workers_;
  std::map<StepKind, Pool> pools_;
  int num_assemblies_ = 0;
};

}  // namespace gpipe::detail
