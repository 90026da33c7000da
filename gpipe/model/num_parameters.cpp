#include "gpipe/model/num_parameters.h"

#include <numeric>

#include "gpipe/model/no_init_scope.h"

namespace gpipe {

std::vector<std::int64_t> num_parameters_by_layer(const LayerChain& chain) {
  const NoInitScope scope;
  std::vector<std::int64_t> counts;
  for (int layer = 0; layer < chain.size(); ++layer) {
    counts.push_back(0);
    const Layer built = chain.build(layer, /*seed=*/0);
    for (const auto& parameter : built.module->named_parameters()) {
      if (!chain.is_tied_user(layer, chain.scope(layer) + parameter.key())) counts.back() += parameter.value().numel();
    }
  }
  return counts;
}

std::int64_t num_parameters(const LayerChain& chain) {
  const std::vector<std::int64_t> counts = num_parameters_by_layer(chain);
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

}  // namespace gpipe
