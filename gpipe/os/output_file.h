// Files that are written: the one place that decides whether a file may be written at a path, and files that are on the
// disk, whole, before anybody relies on them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "gpipe/error.h"
#include "gpipe/os/file_descriptor.h"
#include "gpipe/os/file_system.h"

namespace gpipe::detail {

enum class OutputKind {
  kNew,        // nothing is there, as far as one can see
  kPlainFile,  // may be replaced, if the user allows it
  // A pipe, a terminal or the like, also through a link as /dev/stdout is one: it can be written into, never replaced.
  kStream,
  kRefused,  // a folder, a link to anything else, a disk, a socket
};

// Note [What may be written]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// A file is made where nothing is, or takes the place of a plain file. It never takes the place of anything else:
// whoever renames a file over a device, a pipe or a link destroys that, and not what it stands for. Texts, which are
// written from their beginning to their end, may go into a stream; weights and checkpoints may not.
struct OutputPath {
  OutputKind kind = OutputKind::kRefused;
  std::string what;  // "a folder", "a named pipe"; empty for what is new or plain

  bool may_be_replaced() const { return kind == OutputKind::kNew || kind == OutputKind::kPlainFile; }
};

// Follows no link at the end of the path, except to find out whether it leads to a stream.
OutputPath look_at_output(const std::string& path);

// Opens it for writing: creates what is new, and only if it is new still; appends to a plain file. Not open on failure,
// which errno tells. REQUIRES: it is not refused.
FileDescriptor open_output(const std::string& path, OutputKind kind);

// What can be done about an errno that writing ended with: "free some space, or name another folder".
const char* remedy_for(int error);
// Whether it is the disk's or a limit's doing, and no fault of the path.
bool is_out_of_room(int error);

// Writes all of it. False on failure, which errno tells; EFBIG is one, no signal.
bool write_all(int file, const char* bytes, std::size_t size, FileSystem& files = real_file_system());

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

}  // namespace gpipe::detail
