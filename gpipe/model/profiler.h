// Profiler: what each layer costs and which skips it uses, found by running the layers on a sample.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/model/given.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/plan/profile.h"

namespace gpipe {

// Where a profiler is, for who wants to know after it has thrown.
struct ProfilerPosition {
  int layer = 0;
  bool in_backward = false;
  Given given;  // to the layer
};

struct ProfilerOptions {
  std::uint64_t seed = 0;
  bool with_seconds = true;       // false: one forward only, for the skips and the bytes of the outputs
  bool with_activations = false;  // also the bytes that a forward leaves; needs a MemoryAccount, see there
  int repeats = 3;                // of which the median counts, after one that does not
  double budget_seconds = 2;      // no further repeat is begun after this
};

// Runs the layers one after the other, each forward and backward, in this thread, and measures its CPU time. The layers'
// parameters, gradients and buffers and all random generators are afterwards as they were.
//
// Throws SkipError that lists every skip which is stashed or popped twice, never popped, or popped before it is stashed; what
// a layer throws passes through.
Profile profile_layers(const std::vector<ChainLayer>& layers, const MicroBatch& sample, const ProfilerOptions& options,
                       ProfilerPosition& position);

}  // namespace gpipe
