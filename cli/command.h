// What every command of the gpipe program shares: how it is added, how it ends, how it complains.
#pragma once

#include <functional>
#include <string>

#include "gpipe/error.h"

namespace gpipe::cli {

enum ExitCode : int {
  kDone = 0,
  kNegativeAnswer = 1,  // the schedule is refused, no partition fits, something required is missing
  kBadUsage = 2,        // an option, a name or an input that cannot be used
};

// A command leaves in `chosen` what to run once the whole command line has been read; it returns an ExitCode.
using Run = std::function<int()>;

// Bad usage that comes with advice of its own; other errors get a pointer to the command's help.
class UsageError : public Error {
 public:
  UsageError(const std::string& what, std::string hint) : Error(what), hint_(std::move(hint)) {}
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

inline void refuse_if(bool is_wrong, const std::string& what, const std::string& hint) {
  if (is_wrong) throw UsageError(what, hint);
}

// What the command line is not to blame for, such as a full disk: exit code 1.
class OutputError : public UsageError {
 public:
  using UsageError::UsageError;
};

}  // namespace gpipe::cli
