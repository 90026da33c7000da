#include "gpipe/torchscript/layer_choice.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>

namespace gpipe::detail {
namespace {

// Cuts that are worth making, and the work before each of them.
struct Candidate {
  int cut = 0;
  int cost = 0;
  int work_before = 0;
};

// For every two successive operations with work: the best of the allowed cuts between them, the last of equal ones.
std::vector<Candidate> candidates_between(const std::vector<int>& work, const CutCosts& costs) {
  std::vector<Candidate> candidates;
  Candidate best;
  best.cost = std::numeric_limits<int>::max();
  int done = 0;
  for (int index = 0; index < static_cast<int>(work.size()); ++index) {
    if (done > 0 && costs.allowed[index] && costs.cost[index] <= best.cost) best = {index, costs.cost[index], done};
    if (work[index] == 0) continue;
    if (best.cost < std::numeric_limits<int>::max()) candidates.push_back(best);
    best.cost = std::numeric_limits<int>::max();
    done += work[index];
  }
  return candidates;
}

// Of the candidates with work strictly between both sides: the least cost, and of these the one nearest to the middle.
const Candidate* best_within(const std::vector<Candidate>& candidates, int work_begin, int work_end) {
  const Candidate* best = nullptr;
  const auto distance = [&](const Candidate& candidate) {
    return std::abs(2 * candidate.work_before - work_begin - work_end);
  };
  for (const Candidate& candidate : candidates) {
    if (candidate.work_before <= work_begin || candidate.work_before >= work_end) continue;
    if (best == nullptr || candidate.cost < best->cost ||
        (candidate.cost == best->cost && distance(candidate) < distance(*best))) {
      best = &candidate;
    }
  }
  return best;
}

// Cuts the piece between two amounts of work until each part has its share, or cannot be cut.
void cut_to_share(const std::vector<Candidate>& candidates, int work_begin, int work_end, double share,
                  std::set<int>& cuts) {
  if (work_end - work_begin <= share) return;
  const Candidate* const best = best_within(candidates, work_begin, work_end);
  if (best == nullptr) return;
  cuts.insert(best->cut);
  cut_to_share(candidates, work_begin, best->work_before, share, cuts);
  cut_to_share(candidates, best->work_before, work_end, share, cuts);
}

void cut_heavy(const CutCosts& costs, int min_layers, std::set<int>& cuts) {
  const std::vector<Candidate> candidates = candidates_between(costs.heavy, costs);
  const int total = std::accumulate(costs.heavy.begin(), costs.heavy.end(), 0);
  const double share = std::max(1.0, static_cast<double>(total) / min_layers);
  int begin = 0;
  for (const Candidate& candidate : candidates) {
    if (candidate.cost > 1) continue;
    cuts.insert(candidate.cut);
    cut_to_share(candidates, begin, candidate.work_before, share, cuts);
    begin = candidate.work_before;
  }
  cut_to_share(candidates, begin, total, share, cuts);
}

void cut_light(const CutCosts& costs, int num_layers, std::set<int>& cuts) {
  std::vector<int> work(costs.is_light.begin(), costs.is_light.end());
  std::vector<Candidate> candidates = candidates_between(work, costs);
  const int total = std::accumulate(work.begin(), work.end(), 0);
  std::set<int> bounds = {0, total};  // in work
  int done = 0;
  for (int index = 0; index < static_cast<int>(work.size()); ++index) {
    if (cuts.count(index) != 0) bounds.insert(done);
    done += work[index];
  }
  while (static_cast<int>(cuts.size()) + 1 < num_layers) {
    const Candidate* best = nullptr;
    int best_size = 0;
    for (auto end = std::next(bounds.begin()); end != bounds.end(); ++end) {
      const int begin = *std::prev(end);
      if (*end - begin <= best_size) continue;
      const Candidate* const found = best_within(candidates, begin, *end);
      if (found == nullptr) continue;
      best = found;
      best_size = *end - begin;
    }
    if (best == nullptr) return;
    bounds.insert(best->work_before);
    cuts.insert(best->cut);
  }
}

}  // namespace

std::vector<int> choose_cuts(const CutCosts& costs, int min_layers) {
  std::set<int> cuts;
  cut_heavy(costs, min_layers, cuts);
  const int least = (min_layers + 3) / 4;
  if (static_cast<int>(cuts.size()) + 1 < least) cut_light(costs, least, cuts);
  return {cuts.begin(), cuts.end()};
}

}  // namespace gpipe::detail
