#include "bleu/ngram_matches.h"

#include <algorithm>
#include <unordered_map>

namespace gpipe::bleu {
namespace {

// An n-gram at a place of a text. Text 0 is the hypothesis.
struct Gram {
  std::uint64_t key;  // equal for equal n-grams: the number of its first n - 1 tokens and that of its last one
  std::uint32_t text;
  std::uint32_t place;  // among the numbers of all texts

  bool operator<(const Gram& other) const { return key != other.key ? key < other.key : text < other.text; }
};

// Numbers for the n-grams of all texts, one text after the other; equal for equal n-grams of one order.
struct Numbers {
  std::vector<std::uint32_t> of_place;
  std::vector<std::size_t> text_ends;
};

Numbers number_tokens(const Tokens& hypothesis, const std::vector<Tokens>& references) {
  Numbers numbers;
  std::unordered_map<std::string_view, std::uint32_t> number_of_token;
  const auto add_text = [&](const Tokens& tokens) {
    for (const std::string_view token : tokens) {
      const auto next = static_cast<std::uint32_t>(number_of_token.size());
      numbers.of_place.push_back(number_of_token.emplace(token, next).first->second);
    }
    numbers.text_ends.push_back(numbers.of_place.size());
  };
  add_text(hypothesis);
  for (const Tokens& reference : references) add_text(reference);
  return numbers;
}

// The n-grams of order `order`, sorted, given the numbers of those one shorter.
std::vector<Gram> sorted_grams(const Numbers& tokens, const std::vector<std::uint32_t>& shorter, std::size_t order) {
  std::vector<Gram> grams;
  grams.reserve(tokens.of_place.size());
  std::size_t begin = 0;
  for (std::uint32_t text = 0; text < tokens.text_ends.size(); ++text) {
    const std::size_t end = tokens.text_ends[text];
    for (std::size_t place = begin; place + order <= end; ++place) {
      const std::uint64_t prefix = order == 1 ? 0 : shorter[place];
      grams.push_back({prefix << 32 | tokens.of_place[place + order - 1], text, static_cast<std::uint32_t>(place)});
    }
    begin = end;
  }
  std::sort(grams.begin(), grams.end());
  return grams;
}

// The matches of the n-grams from `first` to `last`, which are all the same one.
std::int64_t matches_of_one(std::vector<Gram>::const_iterator first, std::vector<Gram>::const_iterator last) {
  std::int64_t in_hypothesis = 0;
  std::int64_t most_in_reference = 0;
  while (first != last) {
    const std::uint32_t text = first->text;
    const auto end = std::find_if(first, last, [text](const Gram& gram) { return gram.text != text; });
    if (text == 0) {
      in_hypothesis = end - first;
    } else {
      most_in_reference = std::max<std::int64_t>(most_in_reference, end - first);
    }
    first = end;
  }
  return std::min(in_hypothesis, most_in_reference);
}

}  // namespace

OrderCounts count_matches(const Tokens& hypothesis, const std::vector<Tokens>& references) {
  OrderCounts matches{};
  const Numbers tokens = number_tokens(hypothesis, references);
  std::vector<std::uint32_t> numbers(tokens.of_place.size());
  for (std::size_t order = 1; order <= matches.size(); ++order) {
    const std::vector<Gram> grams = sorted_grams(tokens, numbers, order);
    std::uint32_t number = 0;
    for (auto first = grams.begin(); first != grams.end(); ++number) {
      const auto end =
          std::find_if(first, grams.end(), [key = first->key](const Gram& gram) { return gram.key != key; });
      matches[order - 1] += matches_of_one(first, end);
      for (; first != end; ++first) numbers[first->place] = number;
    }
  }
  return matches;
}

}  // namespace gpipe::bleu
