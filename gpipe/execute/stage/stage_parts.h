// StageParts: what a stage is made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpipe/model/deferred_weights.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/tie.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"
#include "gpipe/transport/stage_stream.h"

namespace gpipe::detail {

// It stays the same as long as the assembly does.
struct StageParts {
  int index = 0;
  bool is_last = false;
  std::vector<ChainLayer> layers;
  // The names each skip flow carries, in the order of the stage's flows.
  std::vector<std::vector<std::string>> skips_in;
  std::vector<std::vector<std::string>> skips_out;
  // The weights whose gradients each tie flow carries, in the order of the stage's flows.
  std::vector<Tensors> ties_out;
  std::vector<OwnedTie> ties_owned;
  // Which forwards keep only their inputs, by micro-batch.
  std::vector<bool> recomputed;
  // Which layers, counted from the stage's first, drop their activations whenever the others keep theirs.
  Rematerialization rematerialization;
  // What an input gradient leaves to the weight gradient.
  DeferredWeights deferred_weights = DeferredWeights::kMatrices;
  bool defers_for_order = false;  // all, because the input gradients are not in the order of the micro-batches
  // Of the whole model; only for a rematerialization.
  std::vector<SkipProfile> skips;
  // What its memory is booked on; null: it is not measured.
  std::shared_ptr<MemoryAccount> account;
  // Where it computes; null: where its inputs are.
  std::shared_ptr<StageStream> stream;
};

}  // namespace gpipe::detail
