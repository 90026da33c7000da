#include "gpipe/os/file_descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "gpipe/error.h"

namespace gpipe::detail {

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw LaunchError(
        fmt::format("cannot make a pipe: {}; 'ulimit -n' says how many files may be open, and a rank takes two",
                    std::strerror(errno)),
        LaunchError::kNotStarted);
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace gpipe::detail
