// FileDescriptor: closes what it holds; and pipes.
#pragma once

#include <unistd.h>

#include <utility>

namespace gpipe::detail {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) reset(std::exchange(other.number_, -1));
    return *this;
  }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  // Whoever calls it closes it.
  int release() { return std::exchange(number_, -1); }
  void reset(int number = -1) {
    if (number_ >= 0) close(number_);
    number_ = number;
  }

 private:
  int number_ = -1;
};

// A pipe that no program executed later inherits.
struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

// Throws LaunchError if the process has too many files open.
Pipe make_pipe();

}  // namespace gpipe::detail
