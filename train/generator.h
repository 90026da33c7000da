// Continues a text with a trained language model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "data/vocabulary.h"
#include "gpipe/pipeline.h"

namespace gpipe::train {

struct GenerateOptions {
  std::int64_t num_tokens = 100;
  double temperature = 0.8;  // 0: the most likely token each time
  std::int64_t top_k = 40;   // choose among so many; 0: among all
  std::uint64_t seed = 0;
};

// The logits [1, V] of the token behind a text. `ids`, [1, T], go on from those of the calls before; or begin anew.
using NextLogits = std::function<at::Tensor(const at::Tensor& ids, bool begins)>;

// Of a pipeline made of models::transformer_lm, which remembers what it has read.
NextLogits logits_of_transformer(const Pipeline& pipeline);
// Of any other, [N, T] to [N, T, V], which reads the whole text for every token. Puts it into evaluation.
NextLogits logits_of_module(const Pipeline& pipeline);

// The prompt and what follows it; a line break where the model ends a line. A function of its arguments.
// REQUIRES: the model's sequences may be `max_length` long.
std::string generate(const NextLogits& next_logits, const data::Vocabulary& vocabulary, const std::string& prompt,
                     std::int64_t max_length, const GenerateOptions& options);

}  // namespace gpipe::train
