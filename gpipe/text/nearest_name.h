// The valid name a mistyped one was probably meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpipe::detail {

// The candidate with the least edit distance to `name` (insert, delete, replace or swap neighbours, ignoring case);
// the first of several. Empty when none is near: more than a third of the letters would have to change.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace gpipe::detail
