// Models and pipelines: build a chain of layers, and train it in stages. Needs the target gpipe::gpipe.
#pragma once

#include <torch/torch.h>

#include "gpipe/execute/all_ranks.h"
#include "gpipe/execute/freed_memory.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/replica_share.h"
#include "gpipe/execute/stage_optimizers.h"
#include "gpipe/launch/restart.h"
#include "gpipe/launch/world.h"
#include "gpipe/model/autocast_scope.h"
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
#include "gpipe/schedule.h"
#include "gpipe/torchscript/chain_of.h"
#include "gpipe/torchscript/from_torchscript.h"
