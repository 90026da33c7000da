// Data of the right shapes that mean nothing: for models that are run to be measured. On the Meta device they have
// none.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace gpipe::train {

// Ids from 0 to below `limit`.
inline at::Tensor made_up_ids(std::int64_t limit, at::IntArrayRef shape, at::Device device) {
  if (device.is_meta()) return at::empty(shape, at::device(device).dtype(at::kLong));
  return at::randint(limit, shape, at::kLong);
}

inline at::Tensor made_up_images(at::IntArrayRef shape, at::Device device) {
  return device.is_meta() ? at::empty(shape, at::device(device)) : at::randn(shape);
}

}  // namespace gpipe::train
