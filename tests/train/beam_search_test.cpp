// Beam search against a search through everything.
#include "train/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>

#include "gpipe/error.h"

namespace gpipe::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kVocabulary = 5;
constexpr std::int64_t kBegin = 0;
constexpr std::int64_t kEnd = 1;

// Log-probabilities of the token after a prefix: random, but a function of source and prefix.
class RandomModel {
 public:
  at::Tensor log_probs(std::int64_t source, const std::vector<std::int64_t>& prefix) const {
    std::uint64_t seed = 77 + static_cast<std::uint64_t>(source);
    for (const std::int64_t token : prefix) seed = seed * 1000003 + static_cast<std::uint64_t>(token) + 1;
    at::Generator generator = at::detail::createCPUGenerator(seed);
    return at::log_softmax(2 * at::randn({kVocabulary}, generator, at::kDouble), 0);
  }

  // As a beam search calls it.
  NextLogProbs next() {
    return [this](const at::Tensor& parents, const at::Tensor& tokens) {
      std::vector<Row> rows;
      Tensors log_probs_of_rows;
      for (std::int64_t row = 0; row < parents.size(0); ++row) {
        const auto parent = parents[row].item<std::int64_t>();
        rows.push_back(rows_.empty() ? Row{parent, {}} : rows_.at(parent));
        rows.back().prefix.push_back(tokens[row].item<std::int64_t>());
        log_probs_of_rows.push_back(log_probs(rows.back().source, rows.back().prefix));
      }
      rows_ = rows;
      return at::stack(log_probs_of_rows);
    };
  }

 private:
  using Tensors = std::vector<at::Tensor>;
  struct Row {
    std::int64_t source = 0;
    std::vector<std::int64_t> prefix;
  };
  std::vector<Row> rows_;
};

struct Best {
  double score = -1e9;
  std::vector<std::int64_t> tokens;
};

// `prefix` holds the begin.
void try_all(const RandomModel& model, std::int64_t source, std::int64_t max_length, double penalty,
             const std::vector<std::int64_t>& prefix, double log_prob, Best& best) {
  const auto offer = [&](double total) {
    const double score = total / std::pow((5.0 + static_cast<double>(prefix.size())) / 6.0, penalty);
    if (score > best.score) best = {score, {prefix.begin() + 1, prefix.end()}};
  };
  if (static_cast<std::int64_t>(prefix.size()) - 1 == max_length) return offer(log_prob);
  const at::Tensor next = model.log_probs(source, prefix);
  for (std::int64_t token = 0; token < kVocabulary; ++token) {
    const double total = log_prob + next[token].item<double>();
    if (token == kEnd) {
      offer(total);
    } else {
      std::vector<std::int64_t> longer = prefix;
      longer.push_back(token);
      try_all(model, source, max_length, penalty, longer, total, best);
    }
  }
}

BeamSearchOptions options_for(std::int64_t beam_size, double penalty) {
  BeamSearchOptions options;
  options.beam_size = beam_size;
  options.length_penalty = penalty;
  options.begin_token = kBegin;
  options.end_token = kEnd;
  return options;
}

TEST(BeamSearch, ABeamThatHoldsEverythingFindsTheBestOfAll) {
  for (const double penalty : {0.0, 0.6, 1.0}) {
    RandomModel model;
    const std::vector<std::int64_t> max_lengths = {3, 1, 2, 3};
    const auto found = beam_search(max_lengths, model.next(), options_for(200, penalty));
    for (std::size_t source = 0; source < max_lengths.size(); ++source) {
      Best best;
      try_all(model, static_cast<std::int64_t>(source), max_lengths[source], penalty, {kBegin}, 0, best);
      EXPECT_EQ(found[source], best.tokens) << "source " << source << ", penalty " << penalty;
    }
  }
}

TEST(BeamSearch, ABeamOfOneTakesTheMostLikelyTokenEachTime) {
  RandomModel model;
  const auto found = beam_search({6, 6, 6, 6, 6}, model.next(), options_for(1, 0.6));
  for (std::int64_t source = 0; source < 5; ++source) {
    std::vector<std::int64_t> prefix = {kBegin};
    while (prefix.size() < 7) {
      const auto token = model.log_probs(source, prefix).argmax().item<std::int64_t>();
      if (token == kEnd) break;
      prefix.push_back(token);
    }
    EXPECT_EQ(found[source], std::vector<std::int64_t>(prefix.begin() + 1, prefix.end()));
  }
}

TEST(BeamSearch, ASourceIsTheSameAloneAndInABatch) {
  RandomModel together;
  const auto all = beam_search({5, 5, 5}, together.next(), options_for(3, 0.6));
  RandomModel alone;
  EXPECT_EQ(beam_search({5}, alone.next(), options_for(3, 0.6)).front(), all.front());
}

TEST(BeamSearch, OfNothingIsNothing) {
  RandomModel model;
  EXPECT_THAT(beam_search({}, model.next(), options_for(2, 0.6)), IsEmpty());
  EXPECT_THAT(beam_search({0}, model.next(), options_for(2, 0.6)), ElementsAre(IsEmpty()));
  EXPECT_THROW(beam_search({3}, model.next(), options_for(0, 0.6)), InvalidArgument);
}

}  // namespace
}  // namespace gpipe::train
