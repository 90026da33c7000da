#include "data/parallel_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "data/data_error.h"
#include "gpipe/text/utf8.h"

namespace gpipe::data {
namespace {

using detail::find_invalid_utf8;

constexpr std::string_view kTitle = "# gpipe parallel corpus 1\t";
constexpr std::string_view kTitleOfAnyVersion = kTitle.substr(0, kTitle.size() - 2);

// The text up to `mark`, which is taken off together with it; nothing if there is no mark.
std::optional<std::string_view> take_until(std::string_view& text, char mark) {
  const std::size_t end = text.find(mark);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end + 1);
  return taken;
}

// The two fields behind the title.
std::optional<std::array<std::string_view, 2>> head_fields(std::string_view text) {
  std::optional<std::string_view> line = take_until(text, '\n');
  if (!line || line->substr(0, kTitle.size()) != kTitle) return std::nullopt;
  line->remove_prefix(kTitle.size());
  const std::optional<std::string_view> count = take_until(*line, '\t');
  if (!count) return std::nullopt;
  return std::array{*count, *line};
}

[[noreturn]] void throw_at(const std::string& file, std::size_t line, const std::string& problem) {
  throw DataError(file, fmt::format("line {}: {}", line, problem), "delete it, it is made again");
}

}  // namespace

std::vector<SentencePair>& ParallelCorpus::split(Split which) {
  return which == Split::kTrain ? train : which == Split::kDev ? dev : test;
}

const std::vector<SentencePair>& ParallelCorpus::split(Split which) const {
  return which == Split::kTrain ? train : which == Split::kDev ? dev : test;
}

std::string to_tsv(const ParallelCorpus& corpus, std::string_view origin) {
  std::string text = fmt::format("{}{}\t{}\n", kTitle, corpus.num_pairs(), origin);
  for (const Split split : {Split::kTrain, Split::kDev, Split::kTest}) {
    for (const SentencePair& pair : corpus.split(split)) {
      text += to_string(split);
      for (const std::string* field : {&pair.language, &pair.source, &pair.target}) {
        text += '\t';
        text += *field;
      }
      text += '\n';
    }
  }
  return text;
}

bool is_tsv(std::string_view text) {
  const std::size_t size = std::min(text.size(), kTitleOfAnyVersion.size());
  return text.substr(0, size) == kTitleOfAnyVersion.substr(0, size);
}

std::string tsv_origin(std::string_view text) {
  const auto fields = head_fields(text);
  return fields ? std::string((*fields)[1]) : "";
}

ParallelCorpus parse_tsv(std::string_view text, const std::string& file) {
  const auto head = head_fields(text);
  if (!head)
    throw_at(file, 1, fmt::format("expected '{}', a number and an origin", kTitle.substr(0, kTitle.size() - 1)));
  ParallelCorpus corpus;
  std::size_t line_number = 1;
  take_until(text, '\n');
  while (!text.empty()) {
    ++line_number;
    std::optional<std::string_view> line = take_until(text, '\n');
    if (!line) throw_at(file, line_number, "cut off: no line break at its end");
    const auto split_name = take_until(*line, '\t');
    const auto language = take_until(*line, '\t');
    const auto source = take_until(*line, '\t');
    if (!source || line->find('\t') != std::string_view::npos) throw_at(file, line_number, "expected four columns");
    if (language->empty() || source->empty() || line->empty()) throw_at(file, line_number, "an empty column");
    const std::optional<Split> split = split_from_name(*split_name);
    if (!split) throw_at(file, line_number, "the first column is none of train, dev, test");
    for (const std::string_view field : {*language, *source, *line}) {
      if (find_invalid_utf8(field) != std::string_view::npos) throw_at(file, line_number, "not UTF-8");
    }
    corpus.split(*split).push_back({std::string(*source), std::string(*line), std::string(*language)});
  }
  if (fmt::format("{}", corpus.num_pairs()) != (*head)[0]) {
    throw_at(file, 1, fmt::format("{} pairs announced, {} found", (*head)[0], corpus.num_pairs()));
  }
  return corpus;
}

}  // namespace gpipe::data
