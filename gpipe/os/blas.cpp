#include "gpipe/os/blas.h"

#include <dlfcn.h>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

// What openblas_get_parallel returns.
constexpr int kSequential = 0;
constexpr int kThreads = 1;

}  // namespace

SymbolLookup program_symbols() {
  return [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
}

void prepare_blas(int num_workers, const SymbolLookup& lookup) {
  auto* const parallel = reinterpret_cast<int (*)()>(lookup("openblas_get_parallel"));
  if (parallel == nullptr || num_workers == 1) return;
  if (parallel() == kSequential) {
    throw Error(
        "this program uses OpenBLAS without threads (libopenblas0-serial), which gives wrong products when several "
        "stages "
        "call it at a time; install libopenblas0-openmp instead");
  }
  auto* const set_num_threads = reinterpret_cast<void (*)(int)>(lookup("openblas_set_num_threads"));
  if (parallel() == kThreads && set_num_threads != nullptr) set_num_threads(1);
}

}  // namespace gpipe::detail
