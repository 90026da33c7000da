// Split: what exists once the cut is made: the stages' accounts, their devices, and the ways of tied weights.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "gpipe/execute/cut/cut.h"
#include "gpipe/execute/group/group.h"
#include "gpipe/execute/model/model.h"
#include "gpipe/execute/split/memory_book.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/schedule/flow.h"
#include "gpipe/transport/stage_stream.h"

namespace gpipe::detail {

// Thread-compatible.
class Split {
 public:
  // REQUIRES: `cut` is made, and all of them outlive it.
  Split(const Model& model, const Cut& cut, const PipelineOptions& options, Group& group);

  // Puts the layers on the devices and on the accounts of their stages. May be called again, when parameters may have
  // got other memory. Throws InvalidArgument if a weight is tied over two devices.
  void place_layers();

  bool runs_stage(int stage) const;
  // Where the stage computes; null: where its inputs are, or on another rank.
  std::shared_ptr<StageStream> stream(int stage) const;
  // Whether stages are on devices that were named.
  bool has_devices() const { return !streams_.empty(); }
  MemoryBook& memory() { return memory_; }
  const MemoryBook& memory() const { return memory_; }
  // Brings tied weights from the ranks of their owners. Called by all ranks.
  void bring_tied_values() const { bring_tied_values_(); }

  // The skips and ties that go from stage to stage.
  Routes routes(const std::vector<SkipProfile>& skips) const;
  // Whose gradients the replicas add up.
  std::vector<ReducedParameter> reduced_parameters() const;

 private:
  void make_streams();
  // Those whose owner is on another rank go to the device of their layer.
  void place_tied_weights() const;

  const Model& model_;
  const Cut& cut_;
  const PipelineOptions& options_;
  const Group& group_;
  std::vector<std::shared_ptr<StageStream>> streams_;  // by stage, null for those of other ranks; empty: no devices
  MemoryBook memory_;
  std::function<void()> bring_tied_values_;
};

}  // namespace gpipe::detail
