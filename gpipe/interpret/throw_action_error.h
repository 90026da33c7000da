// throw_action_error: tells where an action failed.
#pragma once

#include <string>

#include "gpipe/interpret/action_error.h"
#include "gpipe/schedule/action.h"

namespace gpipe::detail {

// Rethrows the exception that is being handled as an ActionError. REQUIRES: called in a catch block.
[[noreturn]] void throw_action_error(int worker, const Action& action, const std::string& where);

}  // namespace gpipe::detail
