// A file system that fails at a chosen call, and then, if it is to, is dead: as a process that was killed, or a machine
// that lost its power.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gpipe/os/file_system.h"

namespace gpipe {

enum class Fault {
  kNone,
  kKill,        // the call does half of what it should, and nothing happens after it
  kPowerLoss,   // besides, nothing is left that was not flushed: neither bytes nor names
  kTornRename,  // besides, no bytes are left that were not flushed, but all names are
  kNoSpace,     // the call fails; those after it do not
  kIoError,
  kShortWrite,  // every write does one half; no error at all
};

// Works on real files. close() is not counted: a dead process closes its files, too.
class FaultFileSystem : public FileSystem {
 public:
  explicit FaultFileSystem(Fault fault = Fault::kNone, int at_call = -1) : fault_(fault), at_call_(at_call) {}

  int open(const std::string& path, int flags) override;
  ssize_t write(int file, const void* bytes, std::size_t size) override;
  int fsync(int file) override;
  int close(int file) override;
  int rename(const std::string& from, const std::string& to) override;
  int mkdir(const std::string& path) override;
  int unlink(const std::string& path) override;
  int rmdir(const std::string& path) override;

  int num_calls() const { return num_calls_; }
  bool has_failed() const { return num_calls_ > at_call_; }
  // What the disk is like when the machine is on again. To be called once, at the end.
  void reboot();

 private:
  // Something in `directory` that is forgotten unless that is flushed.
  struct Entry {
    std::string directory;
    std::string path;
    std::string renamed_from;   // empty: it was created
    bool has_replaced = false;  // a file with this content
    std::string replaced;
  };

  // True if the call is to be made; else errno is set.
  bool may_call();
  void forget_prefix(const std::string& from, const std::string& to);

  const Fault fault_;
  const int at_call_;
  std::mutex mutex_;
  int num_calls_ = 0;
  bool is_dead_ = false;
  std::map<int, std::string> path_of_;                   // of open files
  std::map<std::string, std::uintmax_t> flushed_bytes_;  // of files that were written
  std::vector<Entry> entries_;
};

}  // namespace gpipe
