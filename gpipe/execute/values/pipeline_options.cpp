#include "gpipe/execute/values/pipeline_options.h"

#include <fmt/format.h>

#include "gpipe/error.h"
#include "gpipe/plan/plan.h"

namespace gpipe {

PipelineOptions::PipelineOptions(const Plan& plan) : num_stages_(0) {
  if (plan.chunks < 1) throw InvalidArgument(fmt::format("the plan has {} chunks; expected at least 1", plan.chunks));
  num_stages_ = plan.num_workers();
  num_micro_batches_ = plan.num_micro_batches;
  schedule_ = plan.schedule;
  chunks_per_worker_ = plan.chunks;
  recompute_ = plan.recompute_by_stage.empty() ? plan.recompute : Recompute::kNever;
  recompute_by_stage_ = plan.recompute_by_stage;
  balance_ = balance_of_plan_ = plan.layers_per_stage;
  rematerialization_ = plan.rematerialization;
  if (!plan.order) return;
  custom_schedule_ = plan.order;  // with its recomputes
  chunks_per_worker_ = 0;
  recompute_ = Recompute::kNever;
  recompute_by_stage_.clear();
}

}  // namespace gpipe
