#include "data/split.h"

namespace gpipe::data {
namespace {

const std::string kNames[] = {"train", "dev", "test"};
constexpr Split kSplits[] = {Split::kTrain, Split::kDev, Split::kTest};

}  // namespace

const std::string& to_string(Split split) { return kNames[static_cast<int>(split)]; }

std::optional<Split> split_from_name(std::string_view name) {
  for (const Split split : kSplits) {
    if (to_string(split) == name) return split;
  }
  return std::nullopt;
}

}  // namespace gpipe::data
