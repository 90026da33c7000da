#include "data/split.h"

namespace gpipe::data {
namespace {

constexpr Split kSplits[] = {Split::kTrain, Split::kDev, Split::kTest};

}  // namespace

const char* to_string(Split split) { return split == Split::kTrain ? "train" : split == Split::kDev ? "dev" : "test"; }

std::optional<Split> split_from_name(std::string_view name) {
  for (const Split split : kSplits) {
    if (name == to_string(split)) return split;
  }
  return std::nullopt;
}

}  // namespace gpipe::data
