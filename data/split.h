// The parts of a data set.
#pragma once

#include <optional>
#include <string_view>

namespace gpipe::data {

enum class Split { kTrain, kDev, kTest };

// "train", "dev", "test".
const char* to_string(Split split);
std::optional<Split> split_from_name(std::string_view name);

}  // namespace gpipe::data
