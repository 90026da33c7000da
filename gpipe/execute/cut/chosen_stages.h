// ChosenStages: what a profile of the first batch has decided, for other ranks.
#pragma once

#include <string>
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

std::string encode(const ChosenStages& chosen);
// Throws InvalidArgument or ParseError if it is none.
ChosenStages decode_chosen_stages(const std::string& text);

}  // namespace gpipe
