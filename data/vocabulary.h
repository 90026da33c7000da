// Vocabulary: text to sub-word ids and back, by SentencePiece.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/subwords.h"

namespace gpipe::data {

// More ids than this are refused: no text has as many sub-words, and the training would look for them.
constexpr int kMaxVocabularySize = 1'000'000;

struct VocabularyOptions {
  std::int64_t size = 8000;             // ids in all, with the special ones
  double character_coverage = 0.9995;   // of the text; rarer characters are spelled in bytes, or unknown
  bool byte_fallback = true;            // 256 of the ids stand for bytes, so that no text is unknown
  std::int64_t max_sentences = 500000;  // a random sample of so many is trained on; 0: all
  std::vector<std::string> symbols;     // pieces that are never split, such as "<2en>"; no comma or white space in them
  std::uint64_t seed = 1;               // of the sample
};

// Thread-safe once it is made.
class Vocabulary {
 public:
  // The same in every vocabulary made here.
  static constexpr std::int32_t kPad = 0;
  static constexpr std::int32_t kUnknown = 1;
  static constexpr std::int32_t kBegin = 2;
  static constexpr std::int32_t kEnd = 3;

  // Trains a unigram model on what `next_sentence` gives, until it returns false. A function of the sentences and the
  // options: it uses one thread. Sentences without text are passed over. One training at a time.
  // Throws DataError if there is no text; throws InvalidArgument on options outside their domain, and, with the number
  // of ids that the text gives, if it does not give so many.
  static Vocabulary train(const std::function<bool(std::string&)>& next_sentence, const VocabularyOptions& options);
  static Vocabulary train(const std::vector<std::string>& sentences, const VocabularyOptions& options);

  // Throws DataError unless the file is a SentencePiece model with the four special ids above.
  static Vocabulary load(const std::string& path);
  // The file is there whole or not at all. Throws DataError.
  void save(const std::string& path) const;
  // The bytes of such a file; `origin` is named when they are not.
  static Vocabulary from_bytes(std::string bytes, const std::string& origin);
  const std::string& bytes() const { return model_; }

  ~Vocabulary();
  Vocabulary(Vocabulary&&) noexcept;
  Vocabulary& operator=(Vocabulary&&) noexcept;

  std::int64_t size() const;
  // Without begin and end.
  std::vector<std::int32_t> encode(std::string_view text) const;
  // Passes over special ids. Throws InvalidArgument on an id that is not from 0 to size() - 1.
  std::string decode(const std::vector<std::int32_t>& ids) const;
  // The id of a piece, such as a symbol; kUnknown if there is none.
  std::int32_t id(std::string_view piece) const;
  std::string piece(std::int32_t id) const;

 private:
  Vocabulary(std::string model, const std::string& file);

  std::string model_;  // the bytes of the file
  std::unique_ptr<Subwords> subwords_;
};

}  // namespace gpipe::data
