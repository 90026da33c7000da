// Scores equal to sacreBLEU's: known facts, and a set of corpora with every number that goes into a score.
#include "bleu/corpus_bleu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "gpipe/error.h"

namespace gpipe::bleu {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Segments = std::vector<std::string>;

BleuStatistics statistics(OrderCounts counts, OrderCounts totals, std::int64_t hypothesis, std::int64_t reference) {
  BleuStatistics made;
  made.counts = counts;
  made.totals = totals;
  made.hypothesis_length = hypothesis;
  made.reference_length = reference;
  return made;
}

void expect_equal(const BleuScore& score, const json& expected) {
  EXPECT_NEAR(score.score, expected["score"].get<double>(), 1e-9);
  EXPECT_NEAR(score.brevity_penalty, expected["bp"].get<double>(), 1e-12);
  EXPECT_EQ(score.statistics.hypothesis_length, expected["sys_len"]);
  EXPECT_EQ(score.statistics.reference_length, expected["ref_len"]);
  for (std::size_t order = 0; order < kMaxOrder; ++order) {
    EXPECT_EQ(score.statistics.counts[order], expected["counts"][order]);
    EXPECT_EQ(score.statistics.totals[order], expected["totals"][order]);
    EXPECT_NEAR(score.precisions[order], expected["precisions"][order].get<double>(), 1e-9);
  }
}

TEST(Bleu, IsThatOfSacreBleuOnEveryCorpusOfTheSet) {
  const json set = json::parse(std::ifstream(GPIPE_TEST_DATA_DIR "/bleu/corpora.json"));
  ASSERT_GE(set["corpora"].size(), 15u);
  for (const json& corpus : set["corpora"]) {
    for (const Tokenizer tokenizer : {Tokenizer::k13a, Tokenizer::kNone, Tokenizer::kChar}) {
      SCOPED_TRACE(corpus["name"].get<std::string>() + ", " + name(tokenizer));
      const BleuScore score = corpus_bleu(corpus["hypotheses"].get<Segments>(),
                                          corpus["references"].get<std::vector<Segments>>(), tokenizer);
      expect_equal(score, corpus["expected"][name(tokenizer)]);
    }
  }
}

TEST(Bleu, AnEmptyReferenceIsNoneWhereThereIsAnother) {
  const auto reference_length = [](const std::vector<Segments>& references) {
    return corpus_bleu({"a b"}, references).statistics.reference_length;
  };
  EXPECT_EQ(reference_length({{"a b c d e"}, {""}}), 5);
  EXPECT_EQ(reference_length({{" "}, {"a b c d e"}}), 5);
  EXPECT_EQ(reference_length({{""}, {""}}), 0);
}

TEST(Bleu, OfKnownStatisticsIsKnown) {
  EXPECT_NEAR(bleu_score(statistics({9, 7, 5, 3}, {10, 8, 6, 4}, 11, 11)).score, 83.75922397, 1e-8);
}

TEST(Bleu, OfNoMatchIsZero) {
  EXPECT_EQ(bleu_score(statistics({0, 0, 0, 0}, {10, 8, 6, 4}, 11, 11)).score, 0);
  EXPECT_EQ(corpus_bleu({"a b c d"}, {{"e f g h"}}).score, 0);
  EXPECT_EQ(corpus_bleu({""}, {{"e f g h"}}).score, 0);
  EXPECT_EQ(corpus_bleu({""}, {{""}}).score, 0);
}

TEST(Bleu, OfASystemsOwnOutputIsAHundred) {
  const Segments output = {"The dog bit the man.", "It was not unexpected: 3.5% of them do."};
  for (const Tokenizer tokenizer : {Tokenizer::k13a, Tokenizer::kNone, Tokenizer::kChar}) {
    EXPECT_NEAR(corpus_bleu(output, {output}, tokenizer).score, 100, 1e-9);
    EXPECT_NEAR(corpus_bleu(output, {Segments{"x", "y"}, output}, tokenizer).score, 100, 1e-9);
  }
}

// 1/2, 1/4, 1/8 of a match for the first, second and third order that has none.
TEST(Bleu, HalvesWhatEachFurtherOrderWithoutAMatchCountsFor) {
  const BleuScore score = bleu_score(statistics({3, 0, 0, 0}, {4, 3, 2, 1}, 4, 4));
  EXPECT_THAT(score.precisions, ::testing::ElementsAre(75, 100.0 / 6, 100.0 / 8, 100.0 / 8));
  EXPECT_NEAR(score.score, std::pow(75 * (100.0 / 6) * 12.5 * 12.5, 0.25), 1e-9);
}

TEST(Bleu, HasNoEffectiveOrder) {
  const BleuScore score = corpus_bleu({"a b c"}, {{"a b c"}});
  EXPECT_EQ(score.score, 0);
  EXPECT_THAT(score.precisions, ::testing::ElementsAre(100, 100, 100, 0));
}

TEST(Bleu, ComparesWithTheClosestLengthAndTheShorterOfTwo) {
  const auto reference_length = [](const std::vector<std::string_view>& references) {
    return segment_statistics("a b c d e", references, Tokenizer::k13a).reference_length;
  };
  EXPECT_EQ(reference_length({"a b c d e f g", "a b c"}), 3);
  EXPECT_EQ(reference_length({"a b c", "a b c d e f g"}), 3);
  EXPECT_EQ(reference_length({"a b c", "a b c d e f"}), 6);
  EXPECT_EQ(reference_length({"", "a b c d e f g h i j"}), 10);
  EXPECT_EQ(reference_length({""}), 0);
}

TEST(Bleu, PunishesATranslationThatIsTooShortOnly) {
  EXPECT_DOUBLE_EQ(bleu_score(statistics({4, 3, 2, 1}, {4, 3, 2, 1}, 4, 8)).brevity_penalty, std::exp(-1.0));
  EXPECT_EQ(bleu_score(statistics({4, 3, 2, 1}, {4, 3, 2, 1}, 8, 4)).brevity_penalty, 1);
  EXPECT_EQ(bleu_score(statistics({0, 0, 0, 0}, {0, 0, 0, 0}, 0, 4)).brevity_penalty, 0);
}

// Counting anew in a way that is obviously right, over random texts of few different tokens.
TEST(Bleu, MatchesAreThoseCountedOneByOne) {
  std::mt19937 random(1);
  const auto text = [&random] {
    std::vector<std::string_view> tokens(random() % 12);
    for (std::string_view& token : tokens) token = std::string_view("abc").substr(random() % 3, 1);
    return tokens;
  };
  const auto count = [](const Tokens& tokens, const Tokens& gram) {
    std::int64_t found = 0;
    for (std::size_t at = 0; at + gram.size() <= tokens.size(); ++at) {
      found += std::equal(gram.begin(), gram.end(), tokens.begin() + static_cast<std::ptrdiff_t>(at)) ? 1 : 0;
    }
    return found;
  };
  for (int trial = 0; trial < 500; ++trial) {
    const Tokens hypothesis = text();
    const std::vector<Tokens> references = {text(), text()};
    OrderCounts expected{};
    for (std::size_t order = 1; order <= kMaxOrder; ++order) {
      std::vector<Tokens> seen;
      for (std::size_t at = 0; at + order <= hypothesis.size(); ++at) {
        const auto begin = hypothesis.begin() + static_cast<std::ptrdiff_t>(at);
        const Tokens gram(begin, begin + static_cast<std::ptrdiff_t>(order));
        if (std::find(seen.begin(), seen.end(), gram) != seen.end()) continue;
        seen.push_back(gram);
        expected[order - 1] +=
            std::min(count(hypothesis, gram), std::max(count(references[0], gram), count(references[1], gram)));
      }
    }
    EXPECT_EQ(count_matches(hypothesis, references), expected);
  }
}

TEST(Bleu, RefusesReferencesOfAnotherLengthNamingBothCounts) {
  const auto refusal = [](const Segments& hypotheses, const std::vector<Segments>& references) -> std::string {
    try {
      corpus_bleu(hypotheses, references);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "not refused";
  };
  EXPECT_THAT(refusal({"a", "b"}, {{"a", "b"}, {"a"}}), HasSubstr("2 hypotheses, but reference 1 has 1 segments"));
  EXPECT_THAT(refusal({"a"}, {}), HasSubstr("at least one reference"));
  EXPECT_THAT(refusal({}, {{}}), HasSubstr("at least one segment"));
}

TEST(Bleu, IsPrintedAsSacreBleuDoesWithAVersionOfItsOwn) {
  EXPECT_THAT(signature(2, Tokenizer::kChar),
              StartsWith("nrefs:2|case:mixed|eff:no|tok:char|smooth:exp|version:gpipe-"));
  const Segments hypotheses = {"The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."};
  const Segments first = {"The dog bit the man.", "It was not unexpected.", "The man bit him first."};
  const Segments second = {"The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."};
  EXPECT_EQ(to_text(corpus_bleu(hypotheses, {first, second}), "how"),
            "BLEU|how = 48.53 82.4/50.0/45.5/37.5 (BP = 0.943 ratio = 0.944 hyp_len = 17 ref_len = 18)");
}

}  // namespace
}  // namespace gpipe::bleu
