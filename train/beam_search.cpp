#include "train/beam_search.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpipe/error.h"

namespace gpipe::train {
namespace {

struct Hypothesis {
  std::vector<std::int64_t> tokens;  // with the begin, without the end
  double log_prob = 0;
  std::int64_t parent = 0;  // its row in the call before
};

struct Candidate {
  double log_prob = 0;
  std::size_t parent = 0;
  std::int64_t token = 0;
};

// The search for one source.
class Search {
 public:
  Search(std::int64_t source, std::int64_t max_length, const BeamSearchOptions& options)
      : source_(source), max_length_(max_length), options_(options), alive_{{{options.begin_token}, 0, source}} {}

  std::int64_t source() const { return source_; }
  // Of the first of those alive in the call before.
  void set_first_row(std::int64_t row) { first_row_ = row; }
  const std::vector<Hypothesis>& alive() const { return alive_; }
  const std::vector<std::int64_t>& best() const { return best_.tokens; }

  // `candidates`, best first, are at least twice the beam, or all there are: so many that a beam of them does not end.
  void extend(const std::vector<Candidate>& candidates) {
    std::vector<Hypothesis> next;
    std::int64_t rank = 0;
    for (const Candidate& candidate : candidates) {
      const bool ends = candidate.token == options_.end_token;
      // An end counts only among the best, so that a beam of 1 is the greedy choice.
      if (ends && rank < options_.beam_size) finish(alive_[candidate.parent].tokens, candidate.log_prob);
      ++rank;
      if (ends || static_cast<std::int64_t>(next.size()) == options_.beam_size) continue;
      next.push_back({alive_[candidate.parent].tokens, candidate.log_prob,
                      first_row_ + static_cast<std::int64_t>(candidate.parent)});
      next.back().tokens.push_back(candidate.token);
    }
    alive_ = std::move(next);
    if (static_cast<std::int64_t>(alive_.empty() ? 0 : alive_.front().tokens.size() - 1) >= max_length_) {
      for (const Hypothesis& hypothesis : alive_) finish(hypothesis.tokens, hypothesis.log_prob);
      alive_.clear();
    }
    if (num_finished_ >= options_.beam_size || cannot_improve()) alive_.clear();
  }

 private:
  double score(double log_prob, std::size_t length) const {
    return log_prob / std::pow((5.0 + static_cast<double>(length)) / 6.0, options_.length_penalty);
  }

  void finish(const std::vector<std::int64_t>& tokens, double log_prob) {
    ++num_finished_;
    const double value = score(log_prob, tokens.size());
    if (value <= best_score_) return;
    best_score_ = value;
    best_.tokens.assign(tokens.begin() + 1, tokens.end());
  }

  // Log-probabilities only fall, and the longest sequence is forgiven most.
  bool cannot_improve() const {
    return !alive_.empty() && num_finished_ > 0 &&
           score(alive_.front().log_prob, static_cast<std::size_t>(max_length_) + 1) <= best_score_;
  }

  std::int64_t source_;
  std::int64_t max_length_;
  const BeamSearchOptions& options_;
  std::int64_t first_row_ = 0;
  std::vector<Hypothesis> alive_;  // best first, all of the same length
  std::int64_t num_finished_ = 0;
  Hypothesis best_;
  double best_score_ = -std::numeric_limits<double>::infinity();
};

// The best continuations by `log_probs`, a row for each of those alive.
std::vector<Candidate> best_candidates(const Search& search, const at::Tensor& log_probs, std::int64_t count) {
  const std::vector<Hypothesis>& alive = search.alive();
  std::vector<double> parents;
  for (const Hypothesis& hypothesis : alive) parents.push_back(hypothesis.log_prob);
  const at::Tensor total = log_probs.to(at::kDouble) + at::tensor(parents, at::kDouble).unsqueeze(1);
  const std::int64_t vocabulary = total.size(1);
  const auto [values, places] = total.flatten().topk(std::min(count, total.numel()));
  std::vector<Candidate> candidates;
  for (std::int64_t rank = 0; rank < values.size(0); ++rank) {
    const auto place = places.data_ptr<std::int64_t>()[rank];
    candidates.push_back(
        {values.data_ptr<double>()[rank], static_cast<std::size_t>(place / vocabulary), place % vocabulary});
  }
  return candidates;
}

}  // namespace

std::vector<std::vector<std::int64_t>> beam_search(const std::vector<std::int64_t>& max_lengths,
                                                   const NextLogProbs& next, const BeamSearchOptions& options) {
  if (options.beam_size < 1)
    throw InvalidArgument(fmt::format("a beam of {}; it must be at least 1", options.beam_size));
  std::vector<std::vector<std::int64_t>> results(max_lengths.size());
  std::vector<Search> searches;
  for (std::size_t source = 0; source < max_lengths.size(); ++source) {
    if (max_lengths[source] > 0) searches.emplace_back(static_cast<std::int64_t>(source), max_lengths[source], options);
  }
  while (!searches.empty()) {
    std::vector<std::int64_t> parents;
    std::vector<std::int64_t> tokens;
    for (const Search& search : searches) {
      for (const Hypothesis& hypothesis : search.alive()) {
        parents.push_back(hypothesis.parent);
        tokens.push_back(hypothesis.tokens.back());
      }
    }
    const at::Tensor log_probs = next(at::tensor(parents, at::kLong), at::tensor(tokens, at::kLong));
    std::int64_t row = 0;
    for (Search& search : searches) {
      const auto end = row + static_cast<std::int64_t>(search.alive().size());
      search.set_first_row(row);
      search.extend(best_candidates(search, log_probs.slice(0, row, end), 2 * options.beam_size));
      row = end;
      if (search.alive().empty()) results[search.source()] = search.best();
    }
    searches.erase(
        std::remove_if(searches.begin(), searches.end(), [](const Search& search) { return search.alive().empty(); }),
        searches.end());
  }
  return results;
}

}  // namespace gpipe::train
