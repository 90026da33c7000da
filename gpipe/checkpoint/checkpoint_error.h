// The error of files: what is wrong with which one, and what to do about it.
#pragma once

#include <string>
#include <utility>

#include "gpipe/error.h"

namespace gpipe {

// A file that cannot be read or written, or does not hold what it should.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& what) : Error(what) {}
  CheckpointError(std::string path, const std::string& what) : Error(path + what), path_(std::move(path)) {}
  // The one at fault; empty if there is no single one.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gpipe
