// Corpus BLEU, equal to sacreBLEU's: 4-grams, exponential smoothing, no effective order, closest reference length.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bleu/ngram_matches.h"
#include "bleu/tokenize.h"

namespace gpipe::bleu {

// What a score is made of. It adds up over segments.
struct BleuStatistics {
  OrderCounts counts{};  // n-grams of the hypothesis that are in a reference
  OrderCounts totals{};  // n-grams of the hypothesis
  std::int64_t hypothesis_length = 0;
  std::int64_t reference_length = 0;

  BleuStatistics& operator+=(const BleuStatistics& other);
};

// The reference length of a segment is that of the reference closest in length, the shorter of two. A reference without
// tokens is none where there is another; where there is not, its length is 0. REQUIRES: at least one reference.
BleuStatistics segment_statistics(std::string_view hypothesis, const std::vector<std::string_view>& references,
                                  Tokenizer tokenizer);

struct BleuScore {
  double score = 0;                            // 0 to 100
  std::array<double, kMaxOrder> precisions{};  // per cent, after smoothing
  double brevity_penalty = 0;
  BleuStatistics statistics;

  // Hypothesis length over reference length; 0 if that is 0.
  double length_ratio() const;
};

// The geometric mean of the precisions times the brevity penalty. The k-th order without a match counts as 1/2^k of a
// match; without any match, or without an n-gram of some order, the score is 0.
BleuScore bleu_score(const BleuStatistics& statistics);

// `references` holds one list of segments a reference, each as long as `hypotheses`. Throws InvalidArgument if it is
// not, if there is no reference or no segment.
BleuScore corpus_bleu(const std::vector<std::string>& hypotheses,
                      const std::vector<std::vector<std::string>>& references, Tokenizer tokenizer = Tokenizer::k13a);

// How a score was made, in sacreBLEU's form: "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:gpipe-0.1.0". The
// version is gpipe's, since it is not sacreBLEU that computed it.
std::string signature(int num_references, Tokenizer tokenizer);

// "82.4/50.0/45.5/37.5 (BP = 0.943 ratio = 0.944 hyp_len = 17 ref_len = 18)"
std::string details(const BleuScore& score);

// "BLEU|<signature> = 48.53 <details>", with two digits where sacreBLEU prints one.
std::string to_text(const BleuScore& score, std::string_view signature);

}  // namespace gpipe::bleu
