// What libtorch throws, as one line for the user.
#pragma once

#include <string>

namespace gpipe::train {

// Of the message of a c10::Error, or of an ActionError that carries one: without libtorch's backtrace; for an
// allocation that failed, with what to do.
std::string describe_torch_failure(const std::string& message);

}  // namespace gpipe::train
