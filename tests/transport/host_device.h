// A device for tests, with memory in host RAM, so that what is on a device can be tested without one.
//
// Its bytes are not those of the values: who reads them by way of data_ptr(), as if they were on the host, reads
// nonsense. Only copies between it and the CPU translate. Every operation runs on the CPU, on such copies.
#pragma once

#include <ATen/InferSize.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <tuple>
#include <utility>
#include <vector>

namespace gpipe::test {

// libtorch lets modules be moved to a few types of devices only. This is one of them, which Debian's libtorch has no
// code for.
inline constexpr c10::DeviceType kHostDevice = c10::DeviceType::XPU;
inline constexpr c10::DeviceIndex kNumHostDevices = 2;

namespace host_device {

// Everything has happened when a call returns, so that streams have nothing to do; which of them had to wait is written
// down.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType /*type*/) {}
  static std::vector<c10::Stream>& streams() {
    thread_local std::vector<c10::Stream> streams = {c10::Stream(c10::Stream::DEFAULT, {kHostDevice, 0}),
                                                     c10::Stream(c10::Stream::DEFAULT, {kHostDevice, 1})};
    return streams;
  }
  // In this thread.
  static std::vector<c10::Stream>& waited() {
    thread_local std::vector<c10::Stream> streams;
    return streams;
  }
  static c10::DeviceIndex& current() {
    thread_local c10::DeviceIndex device = 0;
    return device;
  }
  c10::DeviceType type() const override { return kHostDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kHostDevice, std::exchange(current(), device.index())};
  }
  c10::Device getDevice() const override { return {kHostDevice, current()}; }
  void setDevice(c10::Device device) const override { current() = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current() = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override { return streams()[device.index()]; }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*is_urgent*/) const override {
    static std::atomic<c10::StreamId> next{0};
    return c10::Stream(c10::Stream::UNSAFE, device, ++next);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return std::exchange(streams()[stream.device_index()], stream);
  }
  void record(void** event, const c10::Stream& /*stream*/, c10::DeviceIndex, c10::EventFlag) const override {
    *event = const_cast<Guard*>(this);
  }
  void block(void* /*event*/, const c10::Stream& stream) const override { waited().push_back(stream); }
  bool queryEvent(void* /*event*/) const override { return true; }
  void destroyEvent(void* /*event*/, c10::DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr& /*data*/, const c10::Stream& /*stream*/) const override {}
  c10::DeviceIndex deviceCount() const noexcept override { return kNumHostDevices; }
};
C10_REGISTER_GUARD_IMPL(XPU, Guard);

class Allocator final : public c10::Allocator {
 public:
#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override { return take(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
#else
  c10::DataPtr allocate(std::size_t bytes) const override { return take(bytes); }
#endif

 private:
  static c10::DataPtr take(std::size_t bytes) {
    void* const data = bytes == 0 ? nullptr : std::malloc(bytes);
    return {data, data, [](void* pointer) { std::free(pointer); }, {kHostDevice, Guard::current()}};
  }
};

inline at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, c10::optional<at::ScalarType> dtype,
                        c10::optional<at::Device> device) {
  static Allocator allocator;
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator, c10::DispatchKeySet(c10::DispatchKey::XPU),
                                           dtype.value_or(at::kFloat));
}

inline at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::optional<at::ScalarType> dtype,
                                c10::optional<at::Layout>, c10::optional<at::Device> device, c10::optional<bool>) {
  return empty(sizes, strides, dtype, device);
}

inline at::Tensor empty_contiguous(at::IntArrayRef sizes, c10::optional<at::ScalarType> dtype,
                                   c10::optional<at::Layout>, c10::optional<at::Device> device, c10::optional<bool>,
                                   c10::optional<at::MemoryFormat> format) {
  at::Tensor tensor = empty(sizes, c10::contiguous_strides(sizes), dtype, device);
  if (format && *format != at::MemoryFormat::Contiguous) tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return tensor;
}

// The device's own bytes, as if they were numbers on the CPU.
inline at::Tensor bits_of(const at::Tensor& tensor) {
  const auto type = tensor.element_size() == 1   ? at::kByte
                    : tensor.element_size() == 2 ? at::kShort
                    : tensor.element_size() == 4 ? at::kInt
                                                 : at::kLong;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions(type));
}

inline void translate(at::Tensor& contiguous) {
  auto* const bytes = static_cast<std::uint8_t*>(contiguous.data_ptr());
  for (std::size_t index = 0; index < contiguous.nbytes(); ++index) bytes[index] ^= 0x5a;
}

inline at::Tensor to_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.contiguous();
  at::Tensor host = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  bits_of(host).copy_(bits_of(tensor));
  translate(host);
  return host;
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/ = false) {
  const at::Tensor host = to_host(from);
  if (to.is_cpu()) {
    at::Tensor(to).copy_(host);
    return to;
  }
  at::Tensor values = at::empty(to.sizes(), at::TensorOptions(to.scalar_type()));
  values.copy_(host);
  translate(values);
  bits_of(to).copy_(bits_of(values));
  return to;
}

inline at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  copy_from(from, to, non_blocking);
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) at::Tensor(to).set_data(at::empty(from.sizes(), to.options()));
  return copy_from(from, to);
}

inline at::Tensor strided_view(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                               c10::optional<std::int64_t> offset) {
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                               tensor.key_set(), tensor.dtype());
  result.unsafeGetTensorImpl()->set_storage_offset(offset.value_or(tensor.storage_offset()));
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return result;
}

inline at::Tensor view(const at::Tensor& tensor, at::IntArrayRef sizes) {
  const std::vector<std::int64_t> whole = at::infer_size(sizes, tensor.numel());
  const auto strides = at::detail::computeStride(tensor.sizes(), tensor.strides(), whole);
  TORCH_CHECK(strides.has_value(), "this view needs a copy");
  return strided_view(tensor, whole, *strides, c10::nullopt);
}

inline at::Tensor reshape_alias(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return strided_view(tensor, sizes, strides, c10::nullopt);
}

inline void record_stream(at::Tensor& /*tensor*/, at::Stream /*stream*/) {}

// Its schema does not say that it changes the running statistics, so that the fallback would lose the change.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& input,
                                                                 const c10::optional<at::Tensor>& weight,
                                                                 const c10::optional<at::Tensor>& bias,
                                                                 const c10::optional<at::Tensor>& running_mean,
                                                                 const c10::optional<at::Tensor>& running_var,
                                                                 bool training, double momentum, double eps) {
  const auto host = [](const c10::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? tensor->cpu() : at::Tensor();
  };
  at::Tensor mean = host(running_mean);
  at::Tensor var = host(running_var);
  const auto [output, saved_mean, saved_inverse] =
      at::native_batch_norm(input.cpu(), host(weight), host(bias), mean, var, training, momentum, eps);
  if (mean.defined()) copy_from(mean, *running_mean);
  if (var.defined()) copy_from(var, *running_var);
  return {output.to(input.device()), saved_mean.to(input.device()), saved_inverse.to(input.device())};
}

TORCH_LIBRARY_IMPL(aten, XPU, library) {
  library.impl("empty.memory_format", empty_contiguous);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("as_strided", strided_view);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("record_stream", record_stream);
  library.impl("native_batch_norm", batch_norm);
}

inline void fall_back(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  at::native::cpu_fallback(operation, stack);
}

TORCH_LIBRARY_IMPL(_, XPU, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>()); }

}  // namespace host_device
}  // namespace gpipe::test
