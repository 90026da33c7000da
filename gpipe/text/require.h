// The check of an argument, in one line.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "gpipe/error.h"

namespace gpipe::detail {

// Throws InvalidArgument with the formatted text unless it holds.
template <typename... Args>
void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw InvalidArgument(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace gpipe::detail
