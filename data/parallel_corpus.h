// A parallel corpus: sentences in several languages with their English, and its file form.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/split.h"

namespace gpipe::data {

// Both texts are valid UTF-8 without tabs and line breaks, and not empty.
struct SentencePair {
  std::string source;    // in the language
  std::string target;    // in English
  std::string language;  // "de", "pt-BR"
};

struct ParallelCorpus {
  std::vector<SentencePair> train;
  std::vector<SentencePair> dev;
  std::vector<SentencePair> test;

  std::vector<SentencePair>& split(Split split);
  const std::vector<SentencePair>& split(Split split) const;
  std::size_t num_pairs() const { return train.size() + dev.size() + test.size(); }
};

// The file form: a line about it, then a line a pair.
//   # gpipe parallel corpus 1 TAB number of pairs TAB origin
//   split TAB language TAB source TAB target
// The number shows a file that was cut off; the origin says what it was made of, in the words of the caller.
std::string to_tsv(const ParallelCorpus& corpus, std::string_view origin);

// Throws DataError, with `file` in its message, on anything that is not such a text.
ParallelCorpus parse_tsv(std::string_view text, const std::string& file);

// Whether it begins like such a text, of any version, as far as it goes: a file that was cut off does.
bool is_tsv(std::string_view text);

// The origin of such a text; empty if it does not start like one.
std::string tsv_origin(std::string_view text);

}  // namespace gpipe::data
