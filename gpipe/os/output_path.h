// The one place that decides whether a file may be written at a path.
#pragma once

#include <cstddef>
#include <string>

#include "gpipe/os/file_descriptor.h"

namespace gpipe {

enum class OutputKind {
  kNew,        // nothing is there, as far as one can see
  kPlainFile,  // may be replaced, if the user allows it
  kStream,  // a pipe, a terminal or the like, also through a link as /dev/stdout is one: it can be written into, never replaced
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
bool write_all(int file, const char* bytes, std::size_t size);

}  // namespace gpipe
