// The autocast of a kind of device, CPU or CUDA, in this thread. libtorch 2.4 renamed all of it.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/version.h>

namespace gpipe::autocast {

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)

inline bool is_enabled(at::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
inline void set_enabled(at::DeviceType device, bool enabled) { at::autocast::set_autocast_enabled(device, enabled); }
inline at::ScalarType dtype(at::DeviceType device) { return at::autocast::get_autocast_dtype(device); }
inline void set_dtype(at::DeviceType device, at::ScalarType dtype) { at::autocast::set_autocast_dtype(device, dtype); }

#else

inline bool is_enabled(at::DeviceType device) {
  return device == at::kCPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
}
inline void set_enabled(at::DeviceType device, bool enabled) {
  device == at::kCPU ? at::autocast::set_cpu_enabled(enabled) : at::autocast::set_enabled(enabled);
}
inline at::ScalarType dtype(at::DeviceType device) {
  return device == at::kCPU ? at::autocast::get_autocast_cpu_dtype() : at::autocast::get_autocast_gpu_dtype();
}
inline void set_dtype(at::DeviceType device, at::ScalarType dtype) {
  device == at::kCPU ? at::autocast::set_autocast_cpu_dtype(dtype) : at::autocast::set_autocast_gpu_dtype(dtype);
}

#endif

}  // namespace gpipe::autocast
