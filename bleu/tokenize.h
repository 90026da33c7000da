// Segments cut into tokens, as sacreBLEU's tokenizers 13a, none and char cut them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpipe::bleu {

enum class Tokenizer {
  k13a,   // mteval-v13a: punctuation and symbols apart from words, points and commas kept within numbers
  kNone,  // what whitespace separates
  kChar,  // every code point that is not whitespace
};

// As sacreBLEU writes it: "13a", "none", "char".
const char* name(Tokenizer tokenizer);

// All of them, in the order of the enumeration.
const std::vector<std::string>& tokenizer_names();

// The tokens of `segment` with one blank between them and none around. Whitespace is Unicode's and so are characters;
// 13a's classes are ASCII, so that other punctuation stays with its word. REQUIRES: `segment` is UTF-8; bytes that are
// not are passed on as they are.
std::string tokenize(std::string_view segment, Tokenizer tokenizer);

}  // namespace gpipe::bleu
