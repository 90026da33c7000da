// The value of an option as text: that of what it is read into, whether it was given or not.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <type_traits>
#include <vector>

namespace gpipe::train {

// The shortest text that tells any two values apart. Enumerators are said by their `name`.
template <typename Value>
std::string option_value(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return name(value);
  } else {
    return fmt::format("{}", value);
  }
}

template <typename Value>
std::string option_value(const std::vector<Value>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

template <typename Value>
std::string option_value(const std::optional<Value>& value) {
  return value ? option_value(*value) : "by default";
}

}  // namespace gpipe::train
