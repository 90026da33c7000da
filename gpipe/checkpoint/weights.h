// Weights of a model in a safetensors file, under the plain model's names: for other programs, and to go on from.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>

#include "gpipe/checkpoint/safetensors.h"

namespace gpipe {

// Names of this kind are additions to the weights; load_weights leaves them alone.
constexpr const char* kAddedPrefix = "gpipe.";

// The parameters and buffers of the module, such as a Pipeline. A weight that was tied to another is not there: it is that one.
NamedTensors weights_of(const torch::nn::Module& module);

// See save_safetensors.
void save_weights(const std::string& path, const torch::nn::Module& module,
                  const std::map<std::string, std::string>& metadata = {});

// Copies the values into the module's tensors, converted to their types. A prefix "module." that all names have is ignored,
// and so is a file's silence on num_batches_tracked. Throws CheckpointError, before anything is changed, for a file that is
// not sound, and for weights of another model: names that only one of the two has, or shapes that differ.
void load_weights(const std::string& path, torch::nn::Module& module);
void load_weights(const Safetensors& content, const std::string& path, torch::nn::Module& module);

}  // namespace gpipe
