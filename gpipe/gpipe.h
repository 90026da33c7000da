// Everything a user includes. The part on libtorch comes with the target gpipe::gpipe, which defines GPIPE_WITH_TORCH.
#pragma once

#include "gpipe/error.h"
#include "gpipe/launch/world.h"
#include "gpipe/plan/partition.h"
#include "gpipe/plan/plan.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"
#include "gpipe/plan/rematerialize.h"
#include "gpipe/plan/stage_rematerialization.h"
#include "gpipe/report/chrome_trace.h"
#include "gpipe/report/compare.h"
#include "gpipe/report/gantt.h"
#include "gpipe/report/svg.h"
#include "gpipe/report/timeline.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/planner.h"
#include "gpipe/simulate/simulate.h"

#ifdef GPIPE_WITH_TORCH
#include <torch/torch.h>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/model/deferred_batch_norm.h"
#include "gpipe/model/dropout.h"
#include "gpipe/model/flop_counter.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/meta_kernels.h"
#include "gpipe/model/meta_layer.h"
#include "gpipe/model/no_init_scope.h"
#include "gpipe/model/num_parameters.h"
#include "gpipe/model/profiler.h"
#include "gpipe/model/skip.h"
#endif
