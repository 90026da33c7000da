// OutputQueue: text for standard output and standard error, in the order it came, written as far as it can be without
// waiting: a reader that takes its time does not keep the launcher from its other duties.
#pragma once

#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <string_view>

namespace gpipe {

class OutputQueue {
 public:
  // Text for a file descriptor that refused some before is dropped.
  void add(int fd, std::string_view text);

  bool empty() const { return items_.empty(); }
  std::size_t num_bytes() const { return num_bytes_; }
  // Where the next bytes go. REQUIRES: not empty.
  int next_fd() const { return items_.front().fd; }
  // Writes some of them. REQUIRES: not empty, and poll said that next_fd() takes bytes or is in error.
  void write_some();

  // Whether `fd` refused text: its reader is gone, or the disk is full.
  bool has_refused(int fd) const { return refused_.count(fd) > 0; }
  // Why, if it was not that the reader is gone; 0 otherwise.
  int error() const { return error_; }
  void clear();

 private:
  struct Item {
    int fd;
    std::string text;
  };
  void refuse(int fd);

  std::deque<Item> items_;
  std::size_t num_bytes_ = 0;
  std::set<int> refused_;
  int error_ = 0;
};

}  // namespace gpipe
