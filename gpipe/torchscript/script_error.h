// Script error: what the interpreter says when an operation fails, in one line.
#pragma once

#include <string>

namespace gpipe::detail {

// "x = torch.linear(x, weight) (model.py, line 12): mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)" out of the
// interpreter's traceback; a text that is none comes back with its lines joined.
std::string script_error(const std::string& traceback);

}  // namespace gpipe::detail
