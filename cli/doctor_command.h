// gpipe doctor: what this machine has and what it lacks, found without loading torch.
#pragma once

#include <string>

namespace gpipe::cli {

enum class Finding {
  kFact,      // neither good nor bad
  kOk,        // there
  kWarning,   // gpipe works, but not as well as it could
  kMissing,   // required and not there
  kWrong,     // there, and not fit for training
  kOptional,  // not there and not needed
};

struct Check {
  std::string topic;  // "machine", "libraries", "tools"
  std::string name;
  Finding finding = Finding::kFact;
  std::string detail;  // what was found
  std::string advice;  // what to do about it; empty when there is nothing to do
};

// The BLAS behind libblas.so.3, from the resolved path of the symlink; empty for none.
Check check_blas(const std::string& resolved_path);

}  // namespace gpipe::cli
