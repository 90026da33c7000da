// Freed memory: what becomes of the memory that activations have left.
#pragma once

namespace gpipe {

// Makes the process keep that memory for the next activations. Otherwise much of it goes back to the system after every
// use, and every page of it costs a page fault to get again. For the beginning of main(); the process then stays as
// large as it has ever been. Does nothing where the C library is not glibc.
void keep_freed_memory();

}  // namespace gpipe
