#include "gpipe/transport/stage_stream.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

namespace gpipe::detail {

StageStream::StageStream(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

std::shared_ptr<c10::Event> StageStream::record(const c10::Stream& stream) const {
  auto point = std::make_shared<c10::Event>(device_.type());
  point->record(stream);
  return point;
}

std::shared_ptr<c10::Event> StageStream::record() const { return stream_ ? record(*stream_) : nullptr; }

// On the CPU, what comes from a device is copied by that device's stream that is current in the thread: that one waits.
void StageStream::wait(const std::shared_ptr<c10::Event>& point) const {
  if (point == nullptr) return;
  point->block(stream_ ? *stream_ : c10::impl::VirtualGuardImpl(point->device_type()).getStream(point->device()));
}

void StageStream::wait_for_caller() const {
  if (!stream_) return;
  wait(record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_)));
}

void StageStream::make_caller_wait() const {
  if (!stream_) return;
  record()->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

CallerOrder::CallerOrder(std::vector<std::shared_ptr<StageStream>> streams) : streams_(std::move(streams)) {
  for (const auto& stream : streams_) {
    if (stream != nullptr) stream->wait_for_caller();
  }
}

CallerOrder::~CallerOrder() {
  try {
    make_caller_wait();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) the error of the work is on its way
  }
}

void CallerOrder::make_caller_wait() {
  for (const auto& stream : std::exchange(streams_, {})) {
    if (stream != nullptr) stream->make_caller_wait();
  }
}

at::Tensor on_host(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready) {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  if (ready != nullptr) ready->block(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  return tensor.to(at::kCPU, /*non_blocking=*/false);
}

}  // namespace gpipe::detail
