// Metrics as JSON lines: one object a line, readable while the training runs and after it was killed.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "cli/files.h"

namespace gpipe::train {

// Confined to the thread that made it.
class MetricsLog {
 public:
  // Throws as cli::write_output_file does if `path` is a file already, unless `force` says to replace it, and if it
  // cannot be written, or is neither a file nor a stream.
  MetricsLog(std::string path, bool force) : MetricsLog(std::move(path), force, "") {}

  // Goes on with the file of a training that is resumed after `step`: drops the lines of later steps, which will come
  // again. Throws the same.
  static MetricsLog resume(const std::string& path, std::int64_t step);

  // The line is in the file when this returns. JSON has no NaN and no infinity: they become null. Text that is not
  // UTF-8 is repaired. Throws the same if it is not (the disk is full).
  void append(const nlohmann::ordered_json& metrics);

  const std::string& path() const { return path_; }

 private:
  MetricsLog(std::string path, bool force, const std::string& content);

  std::string path_;
  cli::GrowingFile file_;
};

}  // namespace gpipe::train
