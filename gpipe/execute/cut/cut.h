// Cut: where the chain of layers is cut into stages, and how each stage treats its activations. A value.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {

struct Cut {
  std::vector<int> worker_of_stage;                  // as the schedule has it
  std::vector<int> layers_per_stage;                 // empty until it is given or chosen
  std::vector<Recompute> recompute_by_stage;         // empty: the same for all
  std::vector<Rematerialization> rematerialization;  // by stage; empty: none
  std::optional<Schedule> order;                     // of a schedule that was searched, with its recomputes
  Profile profile;                                   // of the first batch; without layers if it was not profiled
  std::map<bool, std::vector<SkipProfile>> skips;    // by whether in training, as far as they are known

  int num_stages() const { return static_cast<int>(worker_of_stage.size()); }
  // Whether it is known which layers are in which stage.
  bool is_made() const { return !layers_per_stage.empty(); }
  // Stage 0 before that.
  int stage_of(int layer) const;
  int worker_of_layer(int layer) const { return worker_of_stage[stage_of(layer)]; }
  // Those that are known for training, or for evaluation.
  const std::vector<SkipProfile>& skips_in(bool training) const;
};

// For that many micro-batches: the one that was searched, or that of the options, without their recompute.
Schedule schedule_for(const PipelineOptions& options, const Cut& cut, int num_micro_batches);

// Throws InvalidArgument or ScheduleError unless another rank's order is one for these options that can run, with the
// first stage on the first worker and the last on the last.
void check_order(const Schedule& order, const PipelineOptions& options);

// What a profile of the first batch has decided, for other ranks: everything but the workers, which they have from the
// schedule, and `skips`, which come from the profile or from a trial of all ranks.
WireRecord to_record(const Cut& cut);
// The cut without those. Throws InvalidArgument or ParseError if it is none.
Cut read_cut(const WireRecord& record);

}  // namespace gpipe::detail
