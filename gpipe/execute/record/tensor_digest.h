// The digest of tensors: a hash of their bytes, types and shapes.
#pragma once

#include <string>

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// Of all of them in their order; one that is undefined counts as such. Reads them, and changes nothing.
std::string hash_of(const Tensors& tensors);

// "[2, 3] of Float"; several are separated by "; ".
std::string shapes_of(const Tensors& tensors);

// The square root of the sum of the squares, and the sum, of all numbers in them, in double precision.
double norm_of(const Tensors& tensors);
double sum_of(const Tensors& tensors);

}  // namespace gpipe::detail
