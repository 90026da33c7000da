#include "train/translator.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "train/token_batches.h"

namespace gpipe::train {
namespace {

using data::Vocabulary;

constexpr std::size_t kBatchLines = 32;

}  // namespace

Translator::Translator(const torch::nn::Module& model, const Vocabulary& vocabulary, const TranslatorOptions& options)
    : decoder_(model), vocabulary_(vocabulary), options_(options) {}

std::vector<std::string> Translator::translate(const std::vector<std::string>& lines) const {
  std::vector<TokenSequence> sources;
  for (const std::string& line : lines) {
    TokenSequence tokens = vocabulary_.encode(line);
    if (!tokens.empty()) {
      tokens.resize(std::min<std::size_t>(tokens.size(), options_.max_length - 1));
      tokens.push_back(Vocabulary::kEnd);
    }
    sources.push_back(std::move(tokens));
  }
  std::vector<std::size_t> order(lines.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sources[a].size() < sources[b].size(); });
  std::vector<std::string> translations(lines.size());
  for (std::size_t begin = 0; begin < order.size(); begin += kBatchLines) {
    const std::size_t end = std::min(begin + kBatchLines, order.size());
    std::vector<TokenSequence> batch;
    std::vector<std::size_t> places;
    for (std::size_t rank = begin; rank < end; ++rank) {
      if (sources[order[rank]].empty()) continue;
      batch.push_back(sources[order[rank]]);
      places.push_back(order[rank]);
    }
    const std::vector<std::string> texts = translate_batch(batch);
    for (std::size_t index = 0; index < texts.size(); ++index) translations[places[index]] = texts[index];
    if (options_.on_progress) options_.on_progress(end, lines.size());
  }
  return translations;
}

std::vector<std::string> Translator::translate_batch(const std::vector<TokenSequence>& sources) const {
  if (sources.empty()) return {};
  std::vector<const TokenSequence*> rows;
  std::vector<std::int64_t> max_lengths;
  for (const TokenSequence& source : sources) {
    rows.push_back(&source);
    max_lengths.push_back(std::min(options_.max_length - 1, 2 * static_cast<std::int64_t>(source.size()) + 10));
  }
  models::TranslationDecoder::State state = decoder_.encode(to_padded(rows, Vocabulary::kPad));
  const auto next = [&](const at::Tensor& parents, const at::Tensor& tokens) {
    state.select(parents);
    return decoder_.next_token_log_probs(tokens, state);
  };
  BeamSearchOptions search;
  search.beam_size = options_.beam_size;
  search.length_penalty = options_.length_penalty;
  search.begin_token = Vocabulary::kBegin;
  search.end_token = Vocabulary::kEnd;
  std::vector<std::string> texts;
  for (const auto& tokens : beam_search(max_lengths, next, search)) {
    texts.push_back(vocabulary_.decode(TokenSequence(tokens.begin(), tokens.end())));
  }
  return texts;
}

}  // namespace gpipe::train
