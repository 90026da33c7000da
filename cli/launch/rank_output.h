// RankOutput: what one rank prints, as whole lines that say who printed them.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "cli/launch/line_cutter.h"
#include "cli/launch/output_queue.h"
#include "gpipe/os/file_descriptor.h"

namespace gpipe::cli {

// One stream of one rank, from its pipe to the queue. A line is "[2] text"; one of more than 64 KiB becomes several.
class RankOutput {
 public:
  // `target` is where the lines go. REQUIRES: `queue` outlives this.
  RankOutput(FileDescriptor source, int target, std::string prefix, OutputQueue& queue);
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  int fd() const { return source_.get(); }
  bool is_open() const { return source_.is_open(); }
  int target() const { return target_; }
  // Takes what is there. Returns whether there may be more at once; at the end of the stream, closes it.
  bool read_some();
  // Stops reading; what has begun is a line. The rank's next write fails.
  void close();

  // The last few lines, long ones shortened.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void take(std::string_view line);

  FileDescriptor source_;
  int target_;
  std::string prefix_;
  OutputQueue& queue_;
  LineCutter cutter_;
  std::deque<std::string> last_lines_;
};

// "[2] ", in a colour of the rank's own if `colour`.
std::string rank_prefix(int rank, bool colour);

}  // namespace gpipe::cli
