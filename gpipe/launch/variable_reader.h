// Reads variables of one launcher as typed values; every refusal names the variable, the launcher and a remedy.
#pragma once

#include <optional>
#include <string>

#include "gpipe/launch/world.h"

namespace gpipe {

class VariableReader {
 public:
  // REQUIRES: `variables` outlives the reader.
  VariableReader(const Variables& variables, Launcher launcher) : variables_(variables), launcher_(launcher) {}

  // All of these throw EnvironmentError for a value that cannot be used.
  bool has(const char* name) const { return text(name).has_value(); }
  std::optional<std::string> text(const char* name) const;
  std::optional<int> whole(const char* name, int least, int most) const;
  std::optional<double> seconds(const char* name) const;
  std::optional<std::string> address(const char* name) const;
  std::optional<std::string> network_interface(const char* name) const;

  // The same, and throws if it is not set: `because` says why it has to be.
  int required_whole(const char* name, int least, int most, const std::string& because) const;
  std::string required_text(const char* name, const std::string& because) const;

  [[noreturn]] void refuse_missing(const char* name, const std::string& because) const;
  [[noreturn]] void refuse(const char* name, const std::string& problem) const;

 private:
  const Variables& variables_;
  Launcher launcher_;
};

}  // namespace gpipe
