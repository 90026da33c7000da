// Registration order: the order in which a module lists layers that are its children, some of them nested.
#pragma once

#include <string>
#include <vector>

namespace gpipe {

// "a.x", "b", "a.y" are listed as a.x, a.y, b: 0, 2, 1.
std::vector<int> registration_order(const std::vector<std::string>& names);

}  // namespace gpipe
