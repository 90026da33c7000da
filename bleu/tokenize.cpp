#include "bleu/tokenize.h"

#include <algorithm>

#include "gpipe/text/utf8.h"

namespace gpipe::bleu {
namespace {

using detail::utf8_character;
using detail::whitespace_bytes;
using detail::without_trailing_whitespace;

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

bool is_point_or_comma(char letter) { return letter == '.' || letter == ','; }

// ASCII punctuation and symbols (the blank is one) but ' , - and the point.
bool is_symbol(char letter) {
  return (letter >= ' ' && letter <= '&') || (letter >= '(' && letter <= '+') || letter == '/' ||
         (letter >= ':' && letter <= '@') || (letter >= '[' && letter <= '`') || (letter >= '{' && letter <= '~');
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::size_t at = text.find(from);
  if (at == std::string::npos) return;
  std::string replaced;
  std::size_t copied = 0;
  for (; at != std::string::npos; at = text.find(from, copied)) {
    replaced.append(text, copied, at - copied).append(to);
    copied = at + from.size();
  }
  text = replaced.append(text, copied);
}

// What mteval does to SGML before it looks at the language. The order matters: "&amp;lt;" ends as "<".
std::string plain_text(std::string_view segment) {
  std::string text(segment);
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  if (text.find('&') == std::string::npos) return text;
  replace_all(text, "&quot;", "\"");
  replace_all(text, "&amp;", "&");
  replace_all(text, "&lt;", "<");
  replace_all(text, "&gt;", ">");
  return text;
}

// Each pass below goes over the line once from the left, and a letter that took part in one replacement takes part in
// no other of the pass: of "a..", the first pass sets only the first point apart. Letters are bytes here, since no byte
// of a longer character is one of those looked for.

std::string set_symbols_apart(std::string_view line) {
  std::string apart;
  apart.reserve(2 * line.size());
  for (const char letter : line) {
    if (is_symbol(letter)) {
      apart.append(1, ' ').append(1, letter).append(1, ' ');
    } else {
      apart += letter;
    }
  }
  return apart;
}

// For every two neighbours of which `is_pair` says yes: before the first, between them and behind the second.
template <typename IsPair>
std::string set_pairs_apart(std::string_view line, IsPair is_pair, std::string_view before, std::string_view behind) {
  std::string apart;
  apart.reserve(line.size() + line.size() / 4);
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (at + 1 < line.size() && is_pair(line[at], line[at + 1])) {
      apart.append(before).append(1, line[at]).append(1, ' ').append(1, line[at + 1]).append(behind);
      ++at;
    } else {
      apart += line[at];
    }
  }
  return apart;
}

std::string tokenize_13a(std::string_view segment) {
  std::string line = set_symbols_apart(' ' + plain_text(segment) + ' ');
  line = set_pairs_apart(
      line, [](char first, char second) { return !is_digit(first) && is_point_or_comma(second); }, "", " ");
  line = set_pairs_apart(
      line, [](char first, char second) { return is_point_or_comma(first) && !is_digit(second); }, " ", "");
  return set_pairs_apart(
      line, [](char first, char second) { return is_digit(first) && second == '-'; }, "", " ");
}

std::string joined_words(std::string_view line) {
  std::string words;
  words.reserve(line.size());
  bool is_between = false;
  for (std::size_t at = 0; at < line.size();) {
    if (const std::size_t blank = whitespace_bytes(line, at); blank > 0) {
      is_between = !words.empty();
      at += blank;
    } else {
      if (is_between) words += ' ';
      is_between = false;
      words += line[at++];
    }
  }
  return words;
}

std::string joined_characters(std::string_view line) {
  std::string characters;
  characters.reserve(2 * line.size());
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t size = std::max<std::size_t>(utf8_character(line, at).num_bytes, 1);
    if (whitespace_bytes(line, at) == 0) {
      if (!characters.empty()) characters += ' ';
      characters.append(line, at, size);
    }
    at += size;
  }
  return characters;
}

}  // namespace

const std::vector<std::string>& tokenizer_names() {
  static const std::vector<std::string> names = {"13a", "none", "char"};
  return names;
}

const char* name(Tokenizer tokenizer) { return tokenizer_names()[static_cast<std::size_t>(tokenizer)].c_str(); }

std::string tokenize(std::string_view segment, Tokenizer tokenizer) {
  const std::string_view line = without_trailing_whitespace(segment);
  switch (tokenizer) {
    case Tokenizer::k13a:
      return joined_words(tokenize_13a(line));
    case Tokenizer::kNone:
      return joined_words(line);
    case Tokenizer::kChar:
      return joined_characters(line);
  }
  return joined_words(line);
}

}  // namespace gpipe::bleu
