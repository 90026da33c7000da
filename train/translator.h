// Translator: lines of text into English by a trained model and beam search.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/vocabulary.h"
#include "models/translation_transformer.h"
#include "train/beam_search.h"

namespace gpipe::train {

struct TranslatorOptions {
  std::int64_t beam_size = 4;
  double length_penalty = 0.6;
  std::int64_t max_length = 100;                                                 // tokens; what is longer is cut off
  std::function<void(std::size_t num_done, std::size_t num_lines)> on_progress;  // may be empty
};

// Thread-compatible.
class Translator {
 public:
  // A pipeline made of models::translation_transformer; it stays shared. REQUIRES: `vocabulary` outlives it.
  Translator(const torch::nn::Module& model, const data::Vocabulary& vocabulary, const TranslatorOptions& options);

  // One line for each; an empty one for an empty one. The translation of a line does not depend on the others, but for
  // the last bits of sums.
  std::vector<std::string> translate(const std::vector<std::string>& lines) const;

 private:
  // Lines of similar length.
  std::vector<std::string> translate_batch(const std::vector<std::vector<std::int32_t>>& sources) const;

  models::TranslationDecoder decoder_;
  const data::Vocabulary& vocabulary_;
  TranslatorOptions options_;
};

}  // namespace gpipe::train
