#include "data/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "data/atomic_file.h"
#include "data/data_error.h"
#include "data/gzip.h"
#include "data/random.h"
#include "gpipe/error.h"
#include "gpipe/text/utf8.h"

namespace gpipe::data {
namespace {

using detail::normalized_space;
using detail::repaired_utf8;

constexpr std::int64_t kNumSpecial = 4;
constexpr std::int64_t kNumBytes = 256;
constexpr const char* kName = "vocabulary";

// Up to `max_sentences` (0: all) of the sentences that have text, each as likely as the others. SentencePiece could
// sample by itself, but it does so with a seed of its own that nobody can set.
std::vector<std::string> sampled(const std::function<bool(std::string&)>& next_sentence,
                                 const VocabularyOptions& options) {
  const auto max_sentences = static_cast<std::size_t>(options.max_sentences);
  Random random({options.seed});
  std::vector<std::string> sample;
  std::uint64_t num_seen = 0;
  std::string sentence;
  while (next_sentence(sentence)) {
    std::string text = normalized_space(repaired_utf8(sentence));
    if (text.empty()) continue;
    ++num_seen;
    if (max_sentences == 0 || sample.size() < max_sentences) {
      sample.push_back(std::move(text));
    } else if (const std::uint64_t place = random.below(num_seen); place < max_sentences) {
      sample[place] = std::move(text);
    }
  }
  return sample;
}

void check_options(const VocabularyOptions& options) {
  const std::int64_t least =
      kNumSpecial + (options.byte_fallback ? kNumBytes : 0) + static_cast<std::int64_t>(options.symbols.size());
  if (options.size <= least || options.size > kMaxVocabularySize) {
    throw InvalidArgument(
        fmt::format("vocabulary_size is {}; expected more than the {} special ids, bytes and symbols, and at most {}",
                    options.size, least, kMaxVocabularySize));
  }
  if (!(options.character_coverage > 0.9 && options.character_coverage <= 1)) {
    throw InvalidArgument(fmt::format("character_coverage is {}; expected more than 0.9 and at most 1, such as 0.9995",
                                      options.character_coverage));
  }
  if (options.max_sentences < 0) {
    throw InvalidArgument(fmt::format("max_sentences is {}; expected 0 or more", options.max_sentences));
  }
  for (const std::string& symbol : options.symbols) {
    if (symbol.empty() || symbol.find_first_of(", \t\r\n") != std::string::npos) {
      throw InvalidArgument(fmt::format("symbol '{}' is empty or has a comma or white space in it", symbol));
    }
  }
}

std::unordered_map<std::string, std::string> trainer_arguments(const VocabularyOptions& options) {
  return {
      {"model_type", "unigram"},
      {"vocab_size", std::to_string(options.size)},
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"byte_fallback", options.byte_fallback ? "true" : "false"},
      {"shuffle_input_sentence", "false"},
      {"user_defined_symbols", fmt::format("{}", fmt::join(options.symbols, ","))},
      {"num_threads", "1"},
      {"pad_id", std::to_string(Vocabulary::kPad)},
      {"unk_id", std::to_string(Vocabulary::kUnknown)},
      {"bos_id", std::to_string(Vocabulary::kBegin)},
      {"eos_id", std::to_string(Vocabulary::kEnd)},
      {"minloglevel", "2"},
  };
}

}  // namespace

Vocabulary Vocabulary::train(const std::function<bool(std::string&)>& next_sentence, const VocabularyOptions& options) {
  check_options(options);
  const std::vector<std::string> sample = sampled(next_sentence, options);
  if (sample.empty()) throw DataError(kName, "no text to make it of", "give it a corpus that is not empty");
  std::string model;
  std::string problem = subword_library().train(sample, trainer_arguments(options), model);
  const std::size_t location = problem.rfind("] ");  // where in SentencePiece it stands
  if (location != std::string::npos) problem.erase(0, location + 2);
  // "Vocabulary size too high (4000). Please set it to a value <= 155."
  const std::size_t bound = problem.find("<= ");
  if (bound != std::string::npos) {
    const std::size_t number = bound + 3;
    throw InvalidArgument(fmt::format(
        "vocabulary_size is {}, but {} sentences give {} ids at most; use no more than that, or more text",
        options.size, sample.size(), problem.substr(number, problem.find_first_not_of("0123456789", number) - number)));
  }
  if (!problem.empty()) {
    throw DataError(kName, fmt::format("{} sentences do not give {} ids: {}", sample.size(), options.size, problem),
                    "use a vocabulary of another size, or more text");
  }
  return Vocabulary(std::move(model), kName);
}

Vocabulary Vocabulary::train(const std::vector<std::string>& sentences, const VocabularyOptions& options) {
  std::size_t at = 0;
  const auto next_sentence = [&](std::string& sentence) {
    if (at == sentences.size()) return false;
    sentence = sentences[at++];
    return true;
  };
  return train(next_sentence, options);
}

Vocabulary Vocabulary::load(const std::string& path) { return Vocabulary(read_bytes(path), path); }

Vocabulary Vocabulary::from_bytes(std::string bytes, const std::string& origin) {
  return Vocabulary(std::move(bytes), origin);
}

void Vocabulary::save(const std::string& path) const { write_atomically(path, model_); }

Vocabulary::Vocabulary(std::string model, const std::string& file)
    : model_(std::move(model)), subwords_(subword_library().load(model_)) {
  if (subwords_ == nullptr) {
    throw DataError(file, "not a SentencePiece model", "name another file, or make the vocabulary again");
  }
  const std::vector<std::int32_t> special = subwords_->special_ids();
  if (special != std::vector<std::int32_t>{kPad, kUnknown, kBegin, kEnd}) {
    throw DataError(file, fmt::format("pad, unknown, begin, end are {}; expected 0, 1, 2, 3", fmt::join(special, ", ")),
                    "make the vocabulary again");
  }
}

Vocabulary::~Vocabulary() = default;
Vocabulary::Vocabulary(Vocabulary&&) noexcept = default;
Vocabulary& Vocabulary::operator=(Vocabulary&&) noexcept = default;

std::int64_t Vocabulary::size() const { return subwords_->size(); }

std::vector<std::int32_t> Vocabulary::encode(std::string_view text) const {
  return subwords_->encode(std::string(text));
}

std::string Vocabulary::decode(const std::vector<std::int32_t>& ids) const {
  for (const std::int32_t one : ids) {
    if (one < 0 || one >= size()) throw InvalidArgument(fmt::format("id {} is not from 0 to {}", one, size() - 1));
  }
  return subwords_->decode(ids);
}

std::int32_t Vocabulary::id(std::string_view piece) const { return subwords_->id(std::string(piece)); }

std::string Vocabulary::piece(std::int32_t id) const {
  if (id < 0 || id >= size()) throw InvalidArgument(fmt::format("id {} is not from 0 to {}", id, size() - 1));
  return subwords_->piece(id);
}

}  // namespace gpipe::data
