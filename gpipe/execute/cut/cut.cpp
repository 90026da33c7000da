#include "gpipe/execute/cut/cut.h"

namespace gpipe::detail {

int Cut::stage_of(int layer) const {
  int stage = 0;
  for (const int count : layers_per_stage) {
    if (layer < count) return stage;
    layer -= count;
    ++stage;
  }
  return 0;
}

const std::vector<SkipProfile>& Cut::skips_in(bool training) const {
  static const std::vector<SkipProfile> none;
  const auto found = skips.find(training);
  return found != skips.end() ? found->second : none;
}

}  // namespace gpipe::detail
