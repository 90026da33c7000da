// The profiler behind profile(), for layers that a pipeline has built already.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/model/layer.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/noted_input.h"
#include "gpipe/model/profiler.h"

namespace gpipe::detail {

// Where a profiler is, for who wants to know after it has thrown.
struct ProfilerPosition {
  int layer = 0;
  bool in_backward = false;
  NotedInput given;  // to the layer
};

struct LayerSource {
  std::vector<std::string> names;
  std::function<ChainLayer(int)> layer;  // asked for once a pass
};

// What is profiled: the micro-batch, and a part of it that tells what of its cost is fixed.
struct ProfileSample {
  MicroBatch whole;
  std::optional<MicroBatch> part;  // if ProfileOptions::fixed_seconds
};

// Throws as split_batch does, and InvalidArgument if `options` ask for a part of a single row. `replicated` as there.
ProfileSample make_profile_sample(const MicroBatch& whole, const std::vector<int>& replicated,
                                  const ProfileOptions& options);

// The same as profile() for layers from anywhere.
Profile profile_layers(const LayerSource& source, const ProfileSample& sample, const ProfileOptions& options,
                       ProfilerPosition& position);

}  // namespace gpipe::detail
