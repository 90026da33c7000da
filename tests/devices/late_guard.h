// What libtorch asks of a type of devices, answered by the late device.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace gpipe::test {

// Current device and streams are those of the calling thread. Thread-safe.
struct LateGuard final : c10::impl::DeviceGuardImplInterface {
  LateGuard() = default;
  explicit LateGuard(c10::DeviceType /*type*/) {}
  // Of the current device.
  static c10::Stream current_stream();
  static c10::Stream current_stream(c10::DeviceIndex device);

  c10::DeviceType type() const override;
  c10::Device exchangeDevice(c10::Device device) const override;
  c10::Device getDevice() const override;
  void setDevice(c10::Device device) const override;
  void uncheckedSetDevice(c10::Device device) const noexcept override;
  c10::Stream getStream(c10::Device device) const noexcept override;
  c10::Stream getDefaultStream(c10::Device device) const override;
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_urgent) const override;
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override;
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device, c10::EventFlag flag) const override;
  void block(void* event, const c10::Stream& stream) const override;
  bool queryEvent(void* event) const override;
  void destroyEvent(void* event, c10::DeviceIndex device) const noexcept override;
  c10::DeviceIndex deviceCount() const noexcept override;
  bool queryStream(const c10::Stream& stream) const override;
  void synchronizeStream(const c10::Stream& stream) const override;
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override;
};

}  // namespace gpipe::test
