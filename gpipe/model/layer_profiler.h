// The profiler behind profile(), for layers that a pipeline has built already.
#pragma once

#include <functional>
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

// The same as profile() for layers from anywhere.
Profile profile_layers(const LayerSource& source, const MicroBatch& sample, const ProfileOptions& options,
                       ProfilerPosition& position);

}  // namespace gpipe::detail
