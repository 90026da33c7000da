// Skip trial: finds the skips of a model whose layers are on several ranks, by running them once, stage after stage.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/execute/ranks.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/plan/profile.h"
#include "gpipe/transport/stage_stream.h"

namespace gpipe {

struct TrialModel {
  const std::vector<ChainLayer>& layers;  // of which only those of own stages are built
  const std::vector<int>& layers_per_stage;
  const std::vector<int>& worker_of_stage;
  const std::vector<std::shared_ptr<StageStream>>&
      streams;  // by stage; null for those of other ranks; empty: no devices
  std::uint64_t seed = 0;
};

// Called by all ranks. `sample` counts on the rank of the first stage. The layers are left as they were. Throws ActionError
// for what a layer throws, and SkipError, on all ranks, for skips that do not fit together.
std::vector<SkipProfile> try_skips(const TrialModel& model, const MicroBatch& sample, const Ranks& ranks);

}  // namespace gpipe
