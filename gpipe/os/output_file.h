// Files that are on the disk, whole, before anybody relies on them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "gpipe/error.h"
#include "gpipe/os/file_system.h"

namespace gpipe {

// A file that is written from its beginning to its end. All throw CheckpointError with the path and the reason.
class OutputFile {
 public:
  // Creates it, or empties the plain file that is there; refuses anything else.
  OutputFile(FileSystem& files, const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* bytes, std::size_t size);
  // To be called once, at the end: after it, the bytes survive a loss of power. Their name may not: see sync_directory.
  void finish();

 private:
  FileSystem& files_;
  const std::string path_;
  int file_;
};

// What was created, renamed or removed in the directory survives a loss of power. Throws CheckpointError.
void sync_directory(FileSystem& files, const std::string& path);

// The directory that a path is in: "." if it names none.
std::string directory_of(const std::string& path);

// The one way to replace a file: a new one is written beside it and renamed, so that who reads sees the old one or the
// new one, whole. `write` writes the file of the name that it is given and finishes it. Throws CheckpointError, or what
// `write` throws, and then the old one is there, and the new one is not. Threads may replace files of one name at the
// same time.
void replace_file(FileSystem& files, const std::string& path,
                  const std::function<void(const std::string& temporary)>& write);
// The same with that content.
void replace_file(FileSystem& files, const std::string& path, std::string_view content);

// Renames the finished file or directory and makes that last. Throws CheckpointError, also if something is there that
// is no plain file.
void put_in_place(FileSystem& files, const std::string& from, const std::string& to);

// Throws CheckpointError unless nothing or a plain file is there: see Note [What may be written]. put_in_place does it;
// whoever calls it before does not write in vain.
void check_replaceable(const std::string& path);

// "PATH: cannot be written: No space left on device; ..." for the errno at hand.
[[noreturn]] void throw_file_error(const std::string& path, const std::string& what);

}  // namespace gpipe
