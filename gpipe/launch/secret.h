// The secret that the ranks of a run share.
#pragma once

#include <string>

namespace gpipe {

// 256 random bits of the system's, as 64 hexadecimal digits.
std::string make_secret();

}  // namespace gpipe
