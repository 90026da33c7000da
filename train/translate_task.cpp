#include "train/translate_task.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "bleu/corpus_bleu.h"
#include "data/data_dir.h"
#include "data/data_error.h"
#include "data/libreoffice_help.h"
#include "models/registry.h"
#include "train/model_file.h"

namespace gpipe::train {
namespace {

using data::SentencePair;
using data::Vocabulary;

constexpr std::int64_t kDevSentences = 1000;  // as many are evaluated during training

// At most `limit` of each language, from the beginning; they stay in order.
std::vector<SentencePair> first_of_each(const std::vector<SentencePair>& pairs, std::int64_t limit) {
  if (limit == 0) return pairs;
  std::map<std::string, std::int64_t> counts;
  std::vector<SentencePair> kept;
  for (const SentencePair& pair : pairs) {
    if (counts[pair.language]++ < limit) kept.push_back(pair);
  }
  return kept;
}

// All three are needed, and it is better said before the training than after it.
void check_splits(const data::ParallelCorpus& corpus, const std::string& dir) {
  std::vector<const char*> missing;
  for (const data::Split split : {data::Split::kTrain, data::Split::kDev, data::Split::kTest}) {
    if (corpus.split(split).empty()) missing.push_back(to_string(split));
  }
  if (missing.empty()) return;
  throw data::DataError(dir,
                        fmt::format("none of its {} pairs is for {}", corpus.num_pairs(), fmt::join(missing, " or ")),
                        "get whole languages, of which some pages are for each: gpipe get-data libreoffice-help de");
}

Vocabulary train_vocabulary(const std::vector<SentencePair>& pairs, std::int64_t size) {
  std::size_t next = 0;
  data::VocabularyOptions options;
  options.size = size;
  options.max_sentences = 200000;
  return Vocabulary::train(
      [&](std::string& sentence) {
        if (next == 2 * pairs.size()) return false;
        const SentencePair& pair = pairs[next / 2];
        sentence = next % 2 == 0 ? pair.source : pair.target;
        ++next;
        return true;
      },
      options);
}

}  // namespace

TranslateTask::TranslateTask(const TranslateTaskOptions& options, std::optional<Vocabulary> vocabulary, bool only_test)
    : options_(options), vocabulary_(std::move(vocabulary)) {
  if (!only_test && options_.max_length * options_.size_multiple > options_.max_tokens) {
    throw InvalidArgument(fmt::format(
        "--max-tokens {} does not hold a sentence of --max-length {} for each of {} micro-batches; at least {} "
        "would",
        options_.max_tokens, options_.max_length, options_.size_multiple,
        options_.max_length * options_.size_multiple));
  }
  data::HelpOptions help;
  help.languages = options_.languages;
  const std::string dir = options_.data_dir.empty() ? data::find_data_set("libreoffice-help") : options_.data_dir;
  help.cache_dir = data::help_cache_dir(dir);
  const data::ParallelCorpus corpus = data::read_libreoffice_help(dir, help);
  check_splits(corpus, dir);
  const std::vector<SentencePair> training = first_of_each(corpus.train, options_.num_training);
  if (!vocabulary_) vocabulary_ = train_vocabulary(training, options_.vocabulary_size);
  std::set<std::string> languages;
  for (const SentencePair& pair : training) languages.insert(pair.language);
  options_.languages.assign(languages.begin(), languages.end());
  dev_ = encode(corpus.dev);
  // Some of every language.
  if (dev_.size() > kDevSentences) {
    std::vector<TokenPair> some;
    for (std::int64_t index = 0; index < kDevSentences; ++index) {
      some.push_back(std::move(dev_[index * dev_.size() / kDevSentences]));
    }
    dev_ = std::move(some);
  }
  test_ = first_of_each(corpus.test, options_.num_test);
  if (only_test) return;
  training_ = encode(training);
  std::vector<std::int64_t> lengths;
  for (const TokenPair& pair : training_) {
    lengths.push_back(static_cast<std::int64_t>(std::max(pair.source.size(), pair.target.size() - 1)));
  }
  data::BatchOptions batching;
  batching.seed = options_.seed;
  batching.size_multiple = options_.size_multiple;
  batching.drop_last = options_.drop_last;
  batches_.emplace(std::move(lengths), data::TokenBudget{options_.max_tokens, 0}, batching);
}

std::vector<TranslateTask::TokenPair> TranslateTask::encode(const std::vector<SentencePair>& pairs) const {
  std::vector<TokenPair> encoded;
  for (const SentencePair& pair : pairs) {
    TokenPair tokens{vocabulary_->encode(pair.source), vocabulary_->encode(pair.target)};
    tokens.source.push_back(Vocabulary::kEnd);
    tokens.target.insert(tokens.target.begin(), Vocabulary::kBegin);
    tokens.target.push_back(Vocabulary::kEnd);
    const auto longest = static_cast<std::int64_t>(std::max(tokens.source.size(), tokens.target.size() - 1));
    if (longest <= options_.max_length) encoded.push_back(std::move(tokens));
  }
  if (encoded.empty()) {
    throw data::DataError("libreoffice-help", fmt::format("no pair has at most {} tokens", options_.max_length),
                          "raise --max-length");
  }
  return encoded;
}

LayerChain TranslateTask::chain() const {
  return models::translation_transformer(models::translation_model_options(options_.model, vocabulary_->size())
                                             .max_length(options_.max_length)
                                             .padding_id(Vocabulary::kPad)
                                             .dropout(options_.dropout)
                                             .scale_feed_forward(options_.scale_init)
                                             .logit_clip(options_.clip_logits));
}

TensorBatch TranslateTask::to_batch(const std::vector<TokenPair>& pairs,
                                    const std::vector<std::int64_t>& samples) const {
  std::vector<const TokenSequence*> sources;
  std::vector<const TokenSequence*> targets;
  std::int64_t num_tokens = 0;
  for (const std::int64_t sample : samples) {
    sources.push_back(&pairs[sample].source);
    targets.push_back(&pairs[sample].target);
    num_tokens += static_cast<std::int64_t>(pairs[sample].target.size()) - 1;
  }
  const at::Tensor target = to_padded(targets, Vocabulary::kPad);
  const std::int64_t length = target.size(1);
  return {{to_padded(sources, Vocabulary::kPad), target.slice(1, 0, length - 1).contiguous()},
          {target.slice(1, 1).contiguous()},
          num_tokens,
          {},
          {}};
}

std::string TranslateTask::hash_of(const std::vector<TokenPair>& pairs) {
  ContentHash hash;
  for (const TokenPair& pair : pairs) {
    hash.add(pair.source.data(), pair.source.size() * sizeof(pair.source.front()));
    hash.add(pair.target.data(), pair.target.size() * sizeof(pair.target.front()));
  }
  return hash.finish();
}

std::string TranslateTask::data_hash() const { return hash_of(training_); }

std::string TranslateTask::test_hash() const { return hash_of(dev_); }

TensorBatch TranslateTask::to_tensors(const data::Batch& batch) const { return to_batch(training_, batch.samples); }

PipelineImpl::Loss TranslateTask::loss() const { return token_loss(options_.label_smoothing, Vocabulary::kPad); }

std::optional<double> TranslateTask::dev_loss(Pipeline& pipeline, const GoesOn& goes_on) const {
  constexpr std::int64_t kBatch = 64;
  const auto num_pairs = static_cast<std::int64_t>(dev_.size());
  double sum = 0;
  std::int64_t num_tokens = 0;
  for (std::int64_t begin = 0; begin < num_pairs; begin += kBatch) {
    if (!goes_on({"evaluate", "sentences", begin, num_pairs})) return std::nullopt;
    std::vector<std::int64_t> samples(std::min(kBatch, num_pairs - begin));
    std::iota(samples.begin(), samples.end(), begin);
    const TensorBatch batch = to_batch(dev_, samples);
    sum +=
        summed_cross_entropy(pipeline->forward_tensors(batch.inputs).front(), batch.targets.front(), Vocabulary::kPad);
    num_tokens += batch.num_items;
  }
  return sum / static_cast<double>(num_tokens);
}

void TranslateTask::add_bleu(Pipeline& pipeline, const GoesOn& goes_on, std::vector<Measure>& measures) const {
  TranslatorOptions decoding;
  decoding.beam_size = options_.beam_size;
  decoding.max_length = options_.max_length;
  decoding.on_progress = [&](std::size_t num_done, std::size_t num_lines) {
    goes_on({"translate", "sentences", static_cast<std::int64_t>(num_done), static_cast<std::int64_t>(num_lines)});
  };
  Pipeline whole = pipeline;
  if (pipeline->world().size > 1) {
    const NamedTensors weights = gather_weights(pipeline);
    if (weights.empty()) return;  // the first rank has them, and translates
    whole = Pipeline(chain(), PipelineOptions(1).peers(no_peers()));
    load_weights({weights, {}}, "what the ranks have gathered", *whole);
    whole->eval();
  }
  const Translator translator(*whole, *vocabulary_, decoding);
  std::vector<std::string> sources;
  for (const SentencePair& pair : test_) sources.push_back(pair.source);
  const std::vector<std::string> all = translator.translate(sources);
  // Of one language, or of all if it is empty.
  const auto add = [&](const std::string& language, const std::string& name) {
    std::vector<std::string> hypotheses;
    std::vector<std::string> references;
    for (std::size_t index = 0; index < test_.size(); ++index) {
      if (!language.empty() && test_[index].language != language) continue;
      hypotheses.push_back(all[index]);
      references.push_back(test_[index].target);
    }
    const double score = bleu::corpus_bleu(hypotheses, {references}).score;
    measures.push_back({"bleu_" + name, score,
                        fmt::format("{:.2f} on {} sentences, {}", score, hypotheses.size(),
                                    bleu::signature(1, bleu::Tokenizer::k13a))});
  };
  std::set<std::string> languages;
  for (const SentencePair& pair : test_) languages.insert(pair.language);
  for (const std::string& language : languages) add(language, language);
  add("", "all");
}

std::vector<Measure> TranslateTask::evaluate(Pipeline& pipeline, bool is_last, const GoesOn& goes_on) {
  const std::optional<double> loss = dev_loss(pipeline, goes_on);
  if (!loss) return {};
  std::vector<Measure> measures = {{"dev_loss", *loss, fmt::format("{:.4f}", *loss)},
                                   {"dev_perplexity", std::exp(*loss), fmt::format("{:.2f}", std::exp(*loss))}};
  if (is_last) add_bleu(pipeline, goes_on, measures);
  return measures;
}

std::map<std::string, std::string> TranslateTask::metadata() const {
  return {{"gpipe.task", "translate"},
          {"gpipe.model", options_.model},
          {"gpipe.data", "libreoffice-help"},
          {"gpipe.languages", fmt::format("{}", fmt::join(options_.languages, ","))},
          {"gpipe.max_length", std::to_string(options_.max_length)},
          {"gpipe.clip_logits", fmt::format("{}", options_.clip_logits)}};
}

NamedTensors TranslateTask::added_tensors() const { return {vocabulary_tensor(*vocabulary_)}; }

}  // namespace gpipe::train
