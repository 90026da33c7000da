// Checks of the models' options.
#pragma once

#include <cstdint>
#include <string>

namespace gpipe::models {

// Throw InvalidArgument that names the option and its value.
void check_at_least(const std::string& what, std::int64_t value, std::int64_t least);
void check_at_most(const std::string& what, std::int64_t value, std::int64_t most);
void check_multiple(const std::string& what, std::int64_t value, std::int64_t divisor);
// Of a probability.
void check_dropout(double p);

}  // namespace gpipe::models
