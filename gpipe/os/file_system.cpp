#include "gpipe/os/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "gpipe/os/blocked_signal.h"

namespace gpipe {
namespace {

using detail::BlockedSignal;

class RealFileSystem : public FileSystem {
 public:
  int open(const std::string& path, int flags) override { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }
  ssize_t write(int file, const void* bytes, std::size_t size) override {
    const BlockedSignal scope(SIGXFSZ);
    return ::write(file, bytes, size);
  }
  int fsync(int file) override { return ::fsync(file); }
  int close(int file) override { return ::close(file); }
  int rename(const std::string& from, const std::string& to) override { return std::rename(from.c_str(), to.c_str()); }
  int mkdir(const std::string& path) override { return ::mkdir(path.c_str(), 0777); }
  int unlink(const std::string& path) override { return ::unlink(path.c_str()); }
  int rmdir(const std::string& path) override { return ::rmdir(path.c_str()); }
};

}  // namespace

FileSystem& real_file_system() {
  static RealFileSystem files;
  return files;
}

}  // namespace gpipe
