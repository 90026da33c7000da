// BLAS: whether the one that libtorch multiplies matrices with can be called by several threads at a time.
#pragma once

#include <functional>

namespace gpipe::detail {

// Finds a function of the running program by name; null if there is none.
using SymbolLookup = std::function<void*(const char* name)>;
SymbolLookup program_symbols();

// Throws Error if there are several workers and the BLAS is OpenBLAS without threads, which then multiplies wrongly now
// and then, without a word. One with threads of its own (not OpenMP's) is told to use one, or the workers would fight
// for them.
void prepare_blas(int num_workers, const SymbolLookup& lookup = program_symbols());

}  // namespace gpipe::detail
