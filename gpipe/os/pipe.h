// A pipe that no program executed later inherits.
#pragma once

#include "gpipe/os/file_descriptor.h"

namespace gpipe {

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

// Throws LaunchError if the process has too many files open.
Pipe make_pipe();

}  // namespace gpipe
