// The models by name, for the command line: "amoebanet-d:18,208", "resnet20", "t:6,2048,8,512".
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "models/transformer_lm.h"
#include "models/translation_transformer.h"

namespace gpipe::models {

enum class Task { kImage, kLanguage, kTranslation };

struct ModelName {
  Task task;
  std::string usage;        // "amoebanet-d:L,D[,STRIDE,REDUCTIONS]"
  std::string description;  // one line
};

// All there are, in the order of the tasks.
const std::vector<ModelName>& model_names();

// What the data say, not the name.
struct ImageModelOptions {
  TORCH_ARG(std::int64_t, in_channels) = 3;
  TORCH_ARG(std::int64_t, num_classes) = 10;
  TORCH_ARG(bool, deferred_batch_norm) = true;
};

// A name and its sizes, "NAME" or "NAME:SIZE,SIZE". All throw InvalidArgument: for a name that is none, with those that
// are; for sizes that are missing, too many or no numbers, with the usage; and for those the model refuses.

// What the model is for.
Task task_of(const std::string& spec);

// Of a classifier: images [N, in_channels, H, W] to logits [N, num_classes].
LayerChain make_image_model(const std::string& spec, const ImageModelOptions& options = {});

// The options rather than the chain, because there are more of them to set; see transformer_lm,
// translation_transformer.
TransformerLmOptions language_model_options(const std::string& spec, std::int64_t vocabulary_size);
TranslationTransformerOptions translation_model_options(const std::string& spec, std::int64_t vocabulary_size);

}  // namespace gpipe::models
