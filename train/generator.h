// Continues a text with a trained language model.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "data/vocabulary.h"

namespace gpipe::train {

struct GenerateOptions {
  std::int64_t num_tokens = 100;
  double temperature = 0.8;  // 0: the most likely token each time
  std::int64_t top_k = 40;   // choose among so many; 0: among all
  std::uint64_t seed = 0;
};

// The prompt and what follows it; a line break where the model ends a line. A function of its arguments.
// REQUIRES: `model` is a pipeline made of models::transformer_lm whose sequences may be `max_length` long.
std::string generate(const torch::nn::Module& model, const data::Vocabulary& vocabulary, const std::string& prompt,
                     std::int64_t max_length, const GenerateOptions& options);

}  // namespace gpipe::train
