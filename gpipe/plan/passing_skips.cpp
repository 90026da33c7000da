#include "gpipe/plan/passing_skips.h"

#include <algorithm>

namespace gpipe {

PassingSkips::PassingSkips(const Profile& profile, const std::vector<std::int64_t>& weights) {
  const std::size_t num_layers = profile.layers.size();
  crossing_.assign(num_layers + 1, 0);
  if (std::all_of(weights.begin(), weights.end(), [](std::int64_t weight) { return weight == 0; })) {
    no_skips_.assign(num_layers + 1, 0);
    return;
  }
  std::vector<std::vector<std::size_t>> skips_from(num_layers);
  for (std::size_t skip = 0; skip < profile.skips.size(); ++skip) skips_from[profile.skips[skip].from].push_back(skip);

  passing_.resize((num_layers + 1) * (num_layers + 2) / 2);
  std::vector<std::int64_t> popped_at(num_layers + 1, 0);  // by layer, of the skips stashed before `begin`
  for (std::size_t begin = 0; begin <= num_layers; ++begin) {
    std::int64_t weight = 0;
    for (std::size_t end = num_layers + 1; end-- > begin;) {
      weight += popped_at[end];
      passing_[offset(begin) + end - begin] = weight;
    }
    crossing_[begin] = weight;
    if (begin == num_layers) break;
    for (const std::size_t skip : skips_from[begin]) popped_at[profile.skips[skip].to] += weights[skip];
  }
}

}  // namespace gpipe
