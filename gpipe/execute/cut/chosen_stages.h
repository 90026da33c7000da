// ChosenStages: what a profile of the first batch has decided, for other ranks.
#pragma once

#include <vector>

#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"
#include "gpipe/schedule/recompute.h"

namespace gpipe {

struct ChosenStages {
  std::vector<int> layers_per_stage;
  std::vector<Recompute> recompute_by_stage;
  std::vector<Rematerialization> rematerialization;
  Profile profile;
};

namespace detail {
class WireRecord;
}

detail::WireRecord to_record(const ChosenStages& chosen);
// Throws InvalidArgument or ParseError if it is none.
ChosenStages read_chosen_stages(const detail::WireRecord& record);

}  // namespace gpipe
