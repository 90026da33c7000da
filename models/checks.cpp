#include "models/checks.h"

#include <fmt/format.h>

#include "gpipe/error.h"

namespace gpipe::models {

void check_at_least(const std::string& what, std::int64_t value, std::int64_t least) {
  if (value < least) throw InvalidArgument(fmt::format("{} is {}; it must be at least {}", what, value, least));
}

void check_at_most(const std::string& what, std::int64_t value, std::int64_t most) {
  if (value > most) throw InvalidArgument(fmt::format("{} is {}; it must be at most {}", what, value, most));
}

void check_multiple(const std::string& what, std::int64_t value, std::int64_t divisor) {
  check_at_least(what, value, 1);
  if (value % divisor != 0) {
    throw InvalidArgument(fmt::format("{} is {}; it must be a multiple of {}", what, value, divisor));
  }
}

void check_dropout(double p) {
  if (p >= 0 && p <= 1) return;
  throw InvalidArgument(fmt::format("dropout is {}; it must be between 0 and 1", p));
}

}  // namespace gpipe::models
