// Language modelling: the next token of a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/vocabulary.h"
#include "train/task.h"
#include "train/token_batches.h"

namespace gpipe::train {

struct LmTaskOptions {
  std::string model = "transformer-lm:4,256,1024,4";
  std::string torchscript;              // instead of the model: a TorchScript file
  bool deferred_batch_norm = false;     // of that
  std::string data = "kjv";             // or "gcide"
  std::string data_dir;                 // empty: where gpipe get-data puts it
  std::vector<std::string> text_files;  // instead: your own, plain or gzip
  std::int64_t vocabulary_size = 4000;
  std::int64_t sequence_length = 128;
  std::int64_t batch_size = 32;  // sequences
  double dropout = 0.1;
  double label_smoothing = 0;
  std::uint64_t seed = 0;
};

// Of the model by that name; see models/registry.h.
LayerChain language_chain(const std::string& model, std::int64_t vocabulary_size, std::int64_t max_length,
                          double dropout);

// What the file of a model calls the data that came from --text.
constexpr const char* kOwnText = "own text";

class LmTask : public Task {
 public:
  // Reads the text and trains the vocabulary, or takes the one that is given. With `only_test`, there are no batches.
  // Throws DataError.
  LmTask(const LmTaskOptions& options, std::optional<data::Vocabulary> vocabulary, bool only_test = false);

  LayerChain chain() const override;
  const char* unit() const override { return "tokens"; }
  std::string data_hash() const override;
  std::string test_hash() const override;
  std::vector<std::string> agreed_texts() const override;
  PipelineImpl::Loss loss() const override;
  std::vector<Measure> evaluate(Pipeline& pipeline, bool is_last, const GoesOn& goes_on) override;
  std::map<std::string, std::string> metadata() const override;
  NamedTensors added_tensors() const override;

 private:
  TensorBatch to_tensors(const data::Batch& batch) const override;
  LmTaskOptions options_;
  std::optional<data::Vocabulary> vocabulary_;
  at::Tensor training_;  // [rows, sequence_length + 1]
  at::Tensor dev_;
};

}  // namespace gpipe::train
