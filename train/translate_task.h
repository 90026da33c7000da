// Translation of several languages into English by one model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/parallel_corpus.h"
#include "data/vocabulary.h"
#include "train/task.h"
#include "train/token_batches.h"
#include "train/translator.h"

namespace gpipe::train {

struct TranslateTaskOptions {
  std::string model = "t:3,1024,4,256";
  std::string data_dir;                // empty: where gpipe get-data puts libreoffice-help
  std::vector<std::string> languages;  // empty: all that are there
  std::int64_t vocabulary_size = 8000;
  std::int64_t max_length = 100;   // tokens; longer pairs are not trained on
  std::int64_t max_tokens = 4096;  // in a batch, on the longer side, with padding
  std::int64_t size_multiple = 1;  // of the sentences in a batch
  bool drop_last = false;          // what is left over at the end of an epoch
  std::int64_t num_training = 0;   // pairs a language; 0: all
  std::int64_t num_test = 0;       // sentences a language that are translated for BLEU; 0: all
  double dropout = 0.1;
  double label_smoothing = 0.1;
  std::int64_t beam_size = 4;
  bool scale_init = false;  // feed-forward layers begin smaller by the number of layers
  double clip_logits = 0;   // 0: not clipped
  std::uint64_t seed = 0;
};

class TranslateTask : public Task {
 public:
  // Reads the corpus and trains the vocabulary, or takes the one that is given. With `only_test`, there are no batches.
  // Throws DataError, and InvalidArgument if a batch could not hold `size_multiple` of the longest sentences.
  TranslateTask(const TranslateTaskOptions& options, std::optional<data::Vocabulary> vocabulary,
                bool only_test = false);

  LayerChain chain() const override;
  const char* unit() const override { return "tokens"; }
  std::string data_hash() const override;
  std::string test_hash() const override;
  PipelineImpl::Loss loss() const override;
  std::vector<Measure> evaluate(Pipeline& pipeline, bool is_last, const GoesOn& goes_on) override;
  std::map<std::string, std::string> metadata() const override;
  NamedTensors added_tensors() const override;

 private:
  TensorBatch to_tensors(const data::Batch& batch) const override;
  struct TokenPair {
    TokenSequence source;  // with the end token
    TokenSequence target;  // with begin and end
  };

  static std::string hash_of(const std::vector<TokenPair>& pairs);
  std::vector<TokenPair> encode(const std::vector<data::SentencePair>& pairs) const;
  TensorBatch to_batch(const std::vector<TokenPair>& pairs, const std::vector<std::int64_t>& samples) const;
  std::optional<double> dev_loss(Pipeline& pipeline, const GoesOn& goes_on) const;
  void add_bleu(Pipeline& pipeline, const GoesOn& goes_on, std::vector<Measure>& measures) const;

  TranslateTaskOptions options_;
  std::optional<data::Vocabulary> vocabulary_;
  std::vector<TokenPair> training_;
  std::vector<TokenPair> dev_;
  std::vector<data::SentencePair> test_;
};

}  // namespace gpipe::train
