#include "bleu/corpus_bleu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "gpipe/error.h"
#include "gpipe/version.h"

namespace gpipe::bleu {
namespace {

// The tokens of a line that tokenize() has made.
Tokens split(std::string_view line) {
  Tokens tokens;
  for (std::size_t begin = 0; begin < line.size();) {
    const std::size_t end = std::min(line.find(' ', begin), line.size());
    tokens.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return tokens;
}

std::int64_t closest_length(std::int64_t hypothesis_length, const std::vector<Tokens>& references) {
  std::int64_t closest = 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Tokens& reference : references) {
    const auto length = static_cast<std::int64_t>(reference.size());
    const std::int64_t difference = std::abs(hypothesis_length - length);
    if (difference < least || (difference == least && length < closest)) {
      closest = length;
      least = difference;
    }
  }
  return closest;
}

double brevity_penalty(const BleuStatistics& statistics) {
  if (statistics.hypothesis_length >= statistics.reference_length) return 1;
  if (statistics.hypothesis_length == 0) return 0;
  return std::exp(1 -
                  static_cast<double>(statistics.reference_length) / static_cast<double>(statistics.hypothesis_length));
}

void check_sizes(const std::vector<std::string>& hypotheses, const std::vector<std::vector<std::string>>& references) {
  if (references.empty()) throw InvalidArgument("BLEU needs at least one reference, got none");
  if (hypotheses.empty()) throw InvalidArgument("BLEU needs at least one segment, got none");
  for (std::size_t reference = 0; reference < references.size(); ++reference) {
    if (references[reference].size() != hypotheses.size()) {
      throw InvalidArgument(fmt::format(
          "{} hypotheses, but reference {} has {} segments; each hypothesis needs its own segment in every reference",
          hypotheses.size(), reference, references[reference].size()));
    }
  }
}

}  // namespace

BleuStatistics& BleuStatistics::operator+=(const BleuStatistics& other) {
  for (std::size_t order = 0; order < counts.size(); ++order) {
    counts[order] += other.counts[order];
    totals[order] += other.totals[order];
  }
  hypothesis_length += other.hypothesis_length;
  reference_length += other.reference_length;
  return *this;
}

double BleuScore::length_ratio() const {
  if (statistics.reference_length == 0) return 0;
  return static_cast<double>(statistics.hypothesis_length) / static_cast<double>(statistics.reference_length);
}

BleuStatistics segment_statistics(std::string_view hypothesis, const std::vector<std::string_view>& references,
                                  Tokenizer tokenizer) {
  const std::string hypothesis_line = tokenize(hypothesis, tokenizer);
  const Tokens hypothesis_tokens = split(hypothesis_line);
  std::vector<std::string> reference_lines;
  for (const std::string_view reference : references) reference_lines.push_back(tokenize(reference, tokenizer));
  std::vector<Tokens> reference_tokens;
  for (const std::string& line : reference_lines) reference_tokens.push_back(split(line));
  // A segment may have fewer references than others: an empty one is none, unless all are.
  const auto is_empty = [](const Tokens& tokens) { return tokens.empty(); };
  if (!std::all_of(reference_tokens.begin(), reference_tokens.end(), is_empty)) {
    reference_tokens.erase(std::remove_if(reference_tokens.begin(), reference_tokens.end(), is_empty),
                           reference_tokens.end());
  }

  BleuStatistics statistics;
  statistics.hypothesis_length = static_cast<std::int64_t>(hypothesis_tokens.size());
  statistics.reference_length = closest_length(statistics.hypothesis_length, reference_tokens);
  statistics.counts = count_matches(hypothesis_tokens, reference_tokens);
  for (int order = 0; order < kMaxOrder; ++order) {
    statistics.totals[static_cast<std::size_t>(order)] =
        std::max<std::int64_t>(statistics.hypothesis_length - order, 0);
  }
  return statistics;
}

BleuScore bleu_score(const BleuStatistics& statistics) {
  BleuScore result;
  result.statistics = statistics;
  result.brevity_penalty = brevity_penalty(statistics);
  const OrderCounts& counts = statistics.counts;
  if (std::all_of(counts.begin(), counts.end(), [](std::int64_t count) { return count == 0; })) return result;

  double smoothing = 1;
  double sum_of_logarithms = 0;
  for (std::size_t order = 0; order < counts.size(); ++order) {
    const auto total = static_cast<double>(statistics.totals[order]);
    if (total == 0) return result;
    double& precision = result.precisions[order];
    if (counts[order] == 0) smoothing *= 2;
    precision = counts[order] == 0 ? 100 / (smoothing * total) : 100 * static_cast<double>(counts[order]) / total;
    sum_of_logarithms += std::log(precision);
  }
  result.score = result.brevity_penalty * std::exp(sum_of_logarithms / kMaxOrder);
  return result;
}

BleuScore corpus_bleu(const std::vector<std::string>& hypotheses,
                      const std::vector<std::vector<std::string>>& references, Tokenizer tokenizer) {
  check_sizes(hypotheses, references);
  BleuStatistics statistics;
  std::vector<std::string_view> of_segment(references.size());
  for (std::size_t segment = 0; segment < hypotheses.size(); ++segment) {
    for (std::size_t reference = 0; reference < references.size(); ++reference) {
      of_segment[reference] = references[reference][segment];
    }
    statistics += segment_statistics(hypotheses[segment], of_segment, tokenizer);
  }
  return bleu_score(statistics);
}

std::string signature(int num_references, Tokenizer tokenizer) {
  return fmt::format("nrefs:{}|case:mixed|eff:no|tok:{}|smooth:exp|version:gpipe-" GPIPE_VERSION, num_references,
                     name(tokenizer));
}

std::string details(const BleuScore& score) {
  return fmt::format("{:.1f} (BP = {:.3f} ratio = {:.3f} hyp_len = {} ref_len = {})", fmt::join(score.precisions, "/"),
                     score.brevity_penalty, score.length_ratio(), score.statistics.hypothesis_length,
                     score.statistics.reference_length);
}

std::string to_text(const BleuScore& score, std::string_view signature) {
  return fmt::format("BLEU|{} = {:.2f} {}", signature, score.score, details(score));
}

}  // namespace gpipe::bleu
