// OutputQueue: text for standard output and standard error, in the order it came, written as far as it can be without
// waiting: a reader that takes its time does not keep the launcher from its other duties.
#pragma once

#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <string_view>

namespace gpipe::cli {

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

}  // namespace gpipe::cli
