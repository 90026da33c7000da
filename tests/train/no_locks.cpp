// flock(2) as a file system without locks has it.
#include <sys/file.h>

#include <cerrno>

extern "C" int flock(int /*file*/, int /*operation*/) noexcept {
  errno = ENOLCK;
  return -1;
}
