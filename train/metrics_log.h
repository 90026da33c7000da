// Metrics as JSON lines: one object a line, readable while the training runs and after it was killed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gpipe/os/file_descriptor.h"

namespace gpipe::train {

using MetricValue = std::variant<std::int64_t, double, bool, std::string>;

// Fields in the order they are printed.
using Metrics = std::vector<std::pair<std::string, MetricValue>>;

// One line, without its end. JSON has no NaN and no infinity: they become null. Text that is not UTF-8 is repaired.
std::string to_json(const Metrics& metrics);

// Confined to the thread that made it.
class MetricsLog {
 public:
  // Throws InvalidArgument if `path` is a file already, unless `force` says to replace it; Error if it cannot be
  // written, or is neither a file nor a stream: see Note [What may be written].
  MetricsLog(std::string path, bool force);

  // Goes on with the file of a training that is resumed after `step`: drops the lines of later steps, which will come
  // again. Throws Error.
  static MetricsLog resume(const std::string& path, std::int64_t step);

  // The line is in the file when this returns. Throws Error if it is not (the disk is full).
  void append(const Metrics& metrics);

  const std::string& path() const { return path_; }

 private:
  MetricsLog(std::string path, bool force, const std::string& content);

  std::string path_;
  FileDescriptor file_;
};

}  // namespace gpipe::train
