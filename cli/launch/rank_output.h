// What the ranks print, from their pipes to standard output and error: as whole lines that say who printed them, and
// without waiting for a reader that takes its time.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "gpipe/os/file_descriptor.h"

namespace gpipe::cli {

// Cuts the bytes of one stream into lines.
class LineCutter {
 public:
  using Take = std::function<void(std::string_view line)>;

  // `take` gets every line, without its end. One of more than `longest_bytes` (at least 4) arrives in several, none of
  // which ends within a letter of UTF-8.
  LineCutter(std::size_t longest_bytes, Take take);

  void add(std::string_view bytes);
  // What came after the last end of a line is a line, too.
  void finish();

 private:
  void take_too_long();

  std::size_t longest_bytes_;
  Take take_;
  std::string begun_;
};

// Text for standard output and standard error, in the order it came, written as far as it can be without waiting.
class OutputQueue {
 public:
  // Text for a file descriptor whose reader is gone is dropped.
  void add(int fd, std::string_view text);

  bool empty() const { return items_.empty(); }
  std::size_t num_bytes() const { return num_bytes_; }
  // Where the next bytes go. REQUIRES: not empty.
  int next_fd() const { return items_.front().fd; }
  // Writes some of them; what cannot be written, as on a full disk, is dropped. REQUIRES: not empty, and poll said that
  // next_fd() takes bytes or is in error.
  void write_some();

  // Whether the reader of `fd` is gone.
  bool has_no_reader(int fd) const { return readerless_.count(fd) > 0; }
  // The first time that text was dropped for another reason: why, as errno, and from which file descriptor; 0 if none
  // was.
  int error() const { return error_; }
  int error_fd() const { return error_fd_; }
  void clear();

 private:
  struct Item {
    int fd;
    std::string text;
    bool is_torn = false;  // a part of it is written, up to the middle of a line
    bool mends = false;    // it begins with the end of a line that was torn
  };
  void drop_first(int error);
  void drop_all(int fd);

  std::deque<Item> items_;
  std::size_t num_bytes_ = 0;
  std::set<int> readerless_;
  std::set<int> torn_;  // whose last line is not whole, because its end was dropped
  int error_ = 0;
  int error_fd_ = -1;
};

// One stream of one rank, from its pipe to the queue. A line is "[2] text"; one of more than 64 KiB becomes several.
class RankOutput {
 public:
  // `target` is where the lines go. REQUIRES: `queue` outlives this.
  RankOutput(detail::FileDescriptor source, int target, std::string prefix, OutputQueue& queue);
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

  detail::FileDescriptor source_;
  int target_;
  std::string prefix_;
  OutputQueue& queue_;
  LineCutter cutter_;
  std::deque<std::string> last_lines_;
};

// "[2] ", in a colour of the rank's own if `colour`.
std::string rank_prefix(int rank, bool colour);

}  // namespace gpipe::cli
