#include "train/lm_task.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "data/data_dir.h"
#include "data/data_error.h"
#include "data/text.h"
#include "models/registry.h"
#include "train/model_file.h"
#include "train/script_model.h"

namespace gpipe::train {
namespace {

constexpr std::int64_t kNoPadding = -100;

data::TextCorpus read_corpus(const LmTaskOptions& options) {
  if (!options.text_files.empty()) return data::read_text(options.text_files);
  if (options.data != "kjv" && options.data != "gcide") {
    throw InvalidArgument(
        fmt::format("\"{}\" is not a text; there are kjv and gcide, or --text with your own file", options.data));
  }
  const std::string dir = options.data_dir.empty() ? data::find_data_set(options.data) : options.data_dir;
  return data::read_with_remedy("run gpipe get-data " + options.data, [&] {
    const char* name = options.data == "kjv" ? "kjv.txt" : "gcide.dict.dz";
    return data::read_text({data::file_in(dir, name, data::kFetchAgain)});
  });
}

data::Vocabulary train_vocabulary(const std::vector<std::string>& lines, const LmTaskOptions& options) {
  data::VocabularyOptions vocabulary;
  vocabulary.size = options.vocabulary_size;
  vocabulary.max_sentences = 100000;
  return data::Vocabulary::train(lines, vocabulary);
}

std::string hash_of_rows(const at::Tensor& tensor) {
  const at::Tensor rows = tensor.contiguous();
  return content_hash_of({static_cast<const char*>(rows.data_ptr()), rows.nbytes()});
}

// Every line ends with the end token. Row i holds tokens [i * length, (i + 1) * length] of the text: a row's last token
// is the next one's first.
at::Tensor to_rows(const std::vector<std::string>& lines, const data::Vocabulary& vocabulary, std::int64_t length) {
  std::vector<std::int64_t> tokens;
  for (const std::string& line : lines) {
    const TokenSequence line_tokens = vocabulary.encode(line);
    tokens.insert(tokens.end(), line_tokens.begin(), line_tokens.end());
    tokens.push_back(data::Vocabulary::kEnd);
  }
  const std::int64_t num_rows = (static_cast<std::int64_t>(tokens.size()) - 1) / length;
  if (num_rows < 1) {
    throw data::DataError("the text", fmt::format("{} tokens do not make one sequence of {}", tokens.size(), length),
                          "use a longer text or a smaller --sequence-length");
  }
  return at::tensor(tokens, at::kLong).slice(0, 0, num_rows * length + 1).unfold(0, length + 1, length).contiguous();
}

}  // namespace

LayerChain language_chain(const std::string& model, std::int64_t vocabulary_size, std::int64_t max_length,
                          double dropout) {
  return models::transformer_lm(
      models::language_model_options(model, vocabulary_size).max_length(max_length).dropout(dropout));
}

LmTask::LmTask(const LmTaskOptions& options, std::optional<data::Vocabulary> vocabulary, bool only_test)
    : options_(options), vocabulary_(std::move(vocabulary)) {
  const data::TextCorpus corpus = read_corpus(options_);
  if (!vocabulary_) vocabulary_ = train_vocabulary(corpus.train, options_);
  dev_ = to_rows(corpus.dev, *vocabulary_, options_.sequence_length);
  if (only_test) return;
  training_ = to_rows(corpus.train, *vocabulary_, options_.sequence_length);
  data::BatchOptions batching;
  batching.seed = options_.seed;
  batching.drop_last = training_.size(0) >= options_.batch_size;
  batches_.emplace(training_.size(0), options_.batch_size, batching);
}

LayerChain LmTask::chain() const {
  if (!options_.torchscript.empty()) return ScriptModel(options_.torchscript).chain({}, options_.deferred_batch_norm);
  return language_chain(options_.model, vocabulary_->size(), options_.sequence_length, options_.dropout);
}

std::string LmTask::data_hash() const { return hash_of_rows(training_); }

std::string LmTask::test_hash() const { return hash_of_rows(dev_); }

std::vector<std::string> LmTask::agreed_texts() const { return agreed_texts_of(options_.torchscript); }

TensorBatch LmTask::to_tensors(const data::Batch& batch) const {
  const at::Tensor rows = training_.index_select(0, at::tensor(batch.samples, at::kLong));
  const at::Tensor input = rows.slice(1, 0, options_.sequence_length).contiguous();
  const at::Tensor target = rows.slice(1, 1).contiguous();
  return {{input}, {target}, target.numel(), {}, {}};
}

PipelineImpl::Loss LmTask::loss() const { return token_loss(options_.label_smoothing, kNoPadding); }

std::vector<Measure> LmTask::evaluate(Pipeline& pipeline, bool /*is_last*/, const GoesOn& goes_on) {
  double sum = 0;
  for (std::int64_t begin = 0; begin < dev_.size(0); begin += options_.batch_size) {
    const std::int64_t length = options_.sequence_length;
    if (!goes_on({"evaluate", unit(), begin * length, dev_.size(0) * length})) return {};
    const at::Tensor rows = dev_.slice(0, begin, std::min(begin + options_.batch_size, dev_.size(0)));
    const at::Tensor logits = pipeline->forward(rows.slice(1, 0, length).contiguous());
    sum += summed_cross_entropy(logits, rows.slice(1, 1), kNoPadding);
  }
  const double mean = sum / static_cast<double>(dev_.size(0) * options_.sequence_length);
  return {{"dev_perplexity", std::exp(mean), fmt::format("{:.2f}", std::exp(mean))},
          {"dev_loss", mean, fmt::format("{:.4f}", mean)}};
}

std::map<std::string, std::string> LmTask::metadata() const {
  return {{"gpipe.task", "lm"},
          {"gpipe.model", options_.torchscript.empty() ? options_.model : kScriptModel},
          {"gpipe.data", options_.text_files.empty() ? options_.data : kOwnText},
          {"gpipe.sequence_length", std::to_string(options_.sequence_length)}};
}

NamedTensors LmTask::added_tensors() const { return {vocabulary_tensor(*vocabulary_)}; }

}  // namespace gpipe::train
