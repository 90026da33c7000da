// Weights of a model, wherever its stages are, in safetensors files under the plain model's names: for other programs,
// and to go on from.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/execute/pipeline.h"

namespace gpipe {

// Names of this kind are additions to the weights; load_weights leaves them alone.
constexpr const char* kAddedPrefix = "gpipe.";

// The parameters and buffers of the module, such as a Pipeline. A weight that was tied to another is not there: it is
// that one.
NamedTensors weights_of(const torch::nn::Module& module);

// See save_safetensors.
void save_weights(const std::string& path, const torch::nn::Module& module,
                  const std::map<std::string, std::string>& metadata = {});

struct LoadWeightsOptions {
  // Else what fits is loaded, and the rest stays as it is.
  bool strict = true;
  // Only names that begin with it count, without it: "encoder.".
  std::string prefix;
  // New names for those in the file, after the prefix was taken off. A name that ends in a dot stands for all that
  // begin with it; a whole name goes before those, a longer one before a shorter one. {"fc.", "head."}
  std::map<std::string, std::string> rename;
  // Of the names that come of it, those that are passed over, such as another rank's; empty: none.
  std::function<bool(const std::string&)> ignore;
};

// What did not fit.
struct WeightsReport {
  int num_loaded = 0;
  std::vector<std::string> missing;     // of the model, not in the file
  std::vector<std::string> unexpected;  // of the file, not in the model
  std::vector<std::string> mismatched;  // of other shapes: "head.weight: [10, 64] there, [7, 64] here"
};

// Copies the values into the module's tensors, converted to their types. A prefix "module." that all names have is
// ignored, and so is a file's silence on num_batches_tracked. `path` is a safetensors file, the index of several, or a
// folder: a checkpoint, one of checkpoints (then the latest), or one with an index or a model.safetensors. Throws
// CheckpointError, before anything is changed, for what is not sound, and, if strict, for weights of another model,
// with the names.
WeightsReport load_weights(const std::string& path, torch::nn::Module& module, const LoadWeightsOptions& options = {});
WeightsReport load_weights(const Safetensors& content, const std::string& path, torch::nn::Module& module,
                           const LoadWeightsOptions& options = {});

// The same into the layers of a pipeline that this rank runs; what is read may have those of other ranks, too.
WeightsReport load_weights(const std::string& path, const Pipeline& pipeline, const LoadWeightsOptions& options = {});
WeightsReport load_weights(const Safetensors& content, const std::string& path, const Pipeline& pipeline,
                           const LoadWeightsOptions& options = {});

// All ranks call it; throws PeerError. The parameters and buffers of all stages, as weights_of gives them for a
// pipeline on threads. On rank 0; elsewhere nothing.
NamedTensors gather_weights(const Pipeline& pipeline);

// All tensors of a model, from any of the paths that load_weights takes. The files of a checkpoint are compared with
// their hashes.
Safetensors load_model(const std::string& path);

}  // namespace gpipe
