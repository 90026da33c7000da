#include "tests/os/fault_file_system.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>

#include "gpipe/os/output_file.h"

namespace gpipe {
namespace {

using detail::directory_of;

std::string moved(const std::string& path, const std::string& from, const std::string& to) {
  if (path == from) return to;
  return path.compare(0, from.size() + 1, from + "/") == 0 ? to + path.substr(from.size()) : path;
}

}  // namespace

bool FaultFileSystem::may_call() {
  const bool is_the_one = num_calls_++ == at_call_;
  if (is_dead_) {
    errno = EIO;
    return false;
  }
  if (!is_the_one || fault_ == Fault::kNone || fault_ == Fault::kShortWrite) return true;
  errno = fault_ == Fault::kNoSpace ? ENOSPC : EIO;
  is_dead_ = fault_ != Fault::kNoSpace && fault_ != Fault::kIoError;
  return false;
}

int FaultFileSystem::open(const std::string& path, int flags) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!may_call()) return -1;
  const bool is_new = !std::filesystem::exists(path);
  const int file = real_file_system().open(path, flags);
  if (file < 0) return file;
  path_of_[file] = path;
  if ((flags & O_CREAT) != 0) flushed_bytes_[path] = 0;
  if (is_new) entries_.push_back({directory_of(path), path, "", false, ""});
  return file;
}

ssize_t FaultFileSystem::write(int file, const void* bytes, std::size_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool was_dead = is_dead_;
  const std::size_t half = (size + 1) / 2;
  if (!may_call()) {
    const int error = errno;
    if (!was_dead) real_file_system().write(file, bytes, half);
    errno = error;
    return -1;
  }
  return real_file_system().write(file, bytes, fault_ == Fault::kShortWrite ? half : size);
}

int FaultFileSystem::fsync(int file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!may_call()) return -1;
  const std::string& path = path_of_.at(file);
  if (std::filesystem::is_directory(path)) {
    entries_.erase(
        std::remove_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.directory == path; }),
        entries_.end());
  } else {
    flushed_bytes_[path] = std::filesystem::file_size(path);
  }
  return 0;
}

int FaultFileSystem::close(int file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  path_of_.erase(file);
  return real_file_system().close(file);
}

void FaultFileSystem::forget_prefix(const std::string& from, const std::string& to) {
  std::map<std::string, std::uintmax_t> flushed;
  for (const auto& [path, bytes] : flushed_bytes_) flushed[moved(path, from, to)] = bytes;
  flushed_bytes_ = std::move(flushed);
  for (auto& item : path_of_) item.second = moved(item.second, from, to);
  for (Entry& entry : entries_) {
    if (entry.directory != from) {
      if (entry.directory.compare(0, from.size() + 1, from + "/") != 0) continue;
    }
    entry.directory = moved(entry.directory, from, to);
    entry.path = moved(entry.path, from, to);
    entry.renamed_from = moved(entry.renamed_from, from, to);
  }
}

int FaultFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!may_call()) return -1;
  Entry entry{directory_of(to), to, from, std::filesystem::is_regular_file(to), ""};
  if (entry.has_replaced) {
    std::ifstream file(to, std::ios::binary);
    entry.replaced.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  const int result = real_file_system().rename(from, to);
  if (result != 0) return result;
  forget_prefix(from, to);
  entries_.push_back(entry);
  return 0;
}

int FaultFileSystem::mkdir(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!may_call()) return -1;
  const int result = real_file_system().mkdir(path);
  if (result == 0) entries_.push_back({directory_of(path), path, "", false, ""});
  return result;
}

int FaultFileSystem::unlink(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return may_call() ? real_file_system().unlink(path) : -1;
}

int FaultFileSystem::rmdir(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return may_call() ? real_file_system().rmdir(path) : -1;
}

void FaultFileSystem::reboot() {
  if (fault_ != Fault::kPowerLoss && fault_ != Fault::kTornRename) return;
  for (const auto& [path, bytes] : flushed_bytes_) {
    if (std::filesystem::is_regular_file(path) && std::filesystem::file_size(path) > bytes) {
      std::filesystem::resize_file(path, bytes);
    }
  }
  if (fault_ != Fault::kPowerLoss) return;
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (!std::filesystem::exists(entry->path)) continue;
    if (entry->renamed_from.empty()) {
      std::filesystem::remove_all(entry->path);
      continue;
    }
    std::filesystem::rename(entry->path, entry->renamed_from);
    if (entry->has_replaced) std::ofstream(entry->path, std::ios::binary) << entry->replaced;
  }
}

}  // namespace gpipe
