// The largest piece of memory that was asked for since it was last reset; of the whole test program.
#pragma once

#include <cstddef>

namespace gpipe {

void reset_largest_allocation();
std::size_t largest_allocation();

}  // namespace gpipe
