// What the name of a weight says: which layer, and so which stage and which rank, it belongs to.
#pragma once

#include <string>
#include <vector>

#include "gpipe/execute/pipeline.h"

namespace gpipe::detail {

// Whether the name begins with kAddedPrefix.
bool is_added(const std::string& name);

// REQUIRES: the pipeline outlives it, and its stages stay as they are.
class LayerNames {
 public:
  explicit LayerNames(const PipelineImpl& pipeline);

  // 1 before there are stages.
  int num_stages() const { return num_stages_; }
  // The layer that has the weight of that name, or the weight of a slot, "conv.weight/exp_avg"; their number if there is
  // none.
  int layer_of(const std::string& name) const;
  // Of that layer; stage 0 if there is none.
  int stage_of(const std::string& name) const;
  // Whether another rank runs that layer.
  bool is_elsewhere(const std::string& name) const;
  // Whether this rank writes the stage's shard: one rank does.
  bool saves_stage(int stage) const;

 private:
  const PipelineImpl& pipeline_;
  std::vector<int> stage_of_layer_;
  int num_stages_ = 1;
};

}  // namespace gpipe::detail
