#include "gpipe/execute/freed_memory.h"

#include <cstdlib>  // defines __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace gpipe {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLarge = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLarge);  // no block is a mapping of its own, unmapped when it is freed
  mallopt(M_TRIM_THRESHOLD, kLarge);  // the end of the heap is not given back
  mallopt(M_TOP_PAD, 64 << 20);       // nor is a heap of a thread, which is of that size, when it is empty
#endif
}

}  // namespace gpipe
