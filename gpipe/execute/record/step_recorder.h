// StepRecorder: writes down what one step does, for a comparison with the same step run in another way.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "gpipe/model/layer.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/recording/recording.h"

namespace torch::autograd {
struct Node;
}

namespace gpipe::detail {

// The layers of this process, in whose parameters and buffers a recording looks.
struct RecordedLayers {
  std::vector<ChainLayer> layers;  // those that are built
  std::function<int(int layer)> stage_of;
  Tensors known_leaves;  // tensors that require a gradient and are used by layers without being parameters: ties
};

// What to record of a pipeline.
struct RecordSettings {
  int num_steps = 3;
  // The gradients that arrive at each layer. For that the graphs get hooks, so that a backward that is split leaves
  // other parts for later than without them.
  bool with_arrivals = false;
  std::optional<int> probed_layer;  // see Note [Probes]
};

// Thread-safe.
class StepRecorder : public std::enable_shared_from_this<StepRecorder> {
 public:
  // `inputs` of the model may require gradients. What is recorded goes to `take`, if the step is complete.
  StepRecorder(const RecordSettings& settings, std::int64_t step, const RecordedLayers& layers, const Tensors& inputs,
               std::function<void(Recording recorded)> take);

  // What comes to the first of the layers that a stage runs one after the other.
  void entered(int stage, const LayerRun& run, const Tensors& tensors);
  // What a layer, or behind the last one the loss function, has returned.
  void left(int stage, const LayerRun& run, const Tensors& tensors);
  // Runs a layer that is to be probed, before it runs. Nothing for all others.
  using Forward = std::function<Tensors(Tensors)>;
  void probe(const LayerRun& run, const Tensors& inputs, const Forward& forward);

  void add(const LossRecord& loss);
  // The step is complete: `loss` is undefined if it was computed elsewhere; the gradients of inputs may be.
  void finish(const at::Tensor& loss, const Tensors& input_grads, const RecordedLayers& layers);

 private:
  void add(TensorRecord record, const Tensors& tensors, bool with_norm = false);
  // The gradient that comes to that output, once in the backward.
  void note_arrival(int stage, const LayerRun& run, const Tensors& tensors);
  // Leaves of the graph that are known to nobody.
  void find_strays(int stage, const LayerRun& run, const Tensors& tensors);

  const RecordSettings settings_;
  const std::int64_t step_;
  const std::function<void(Recording recorded)> take_;
  std::unordered_set<const void*> known_leaves_;  // by their tensor's implementation
  std::mutex mutex_;
  Recording recording_;
  bool is_probed_ = false;
  std::set<int> searched_layers_;                                               // for strays
  std::map<int, std::unordered_set<const torch::autograd::Node*>> seen_nodes_;  // by stage, in one run of its layers
};

// The parameters as they are before a step.
std::vector<TensorRecord> weights_of(const RecordedLayers& layers, std::int64_t step);

}  // namespace gpipe::detail
