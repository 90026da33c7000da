#include "gpipe/transport/stage_stream.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace gpipe::detail {
namespace {

using c10::impl::VirtualGuardImpl;

// "cuda" means the device of that type that is current.
c10::Device with_index(c10::Device device) {
  return device.is_cpu() || device.has_index() ? device : VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace

c10::Stream current_stream(c10::Device device) { return VirtualGuardImpl(device.type()).getStream(device); }

c10::optional<c10::Stream> own_stream(c10::Device device) {
  if (device.is_cpu()) return c10::nullopt;
  const VirtualGuardImpl guard(device.type());
#if TORCH_VERSION_MAJOR < 2
  if (!device.is_cuda()) return guard.getDefaultStream(device);
#endif
  return guard.getStreamFromGlobalPool(device);
}

std::shared_ptr<c10::Event> point_in(const c10::Stream& stream) {
  auto point = std::make_shared<c10::Event>(stream.device_type());
  point->record(stream);
  return point;
}

void CallerPoints::record(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || on(tensor.device()) != nullptr) continue;
    points_.push_back(point_in(current_stream(tensor.device())));
  }
}

std::shared_ptr<c10::Event> CallerPoints::on(c10::Device device) const {
  const auto found =
      std::find_if(points_.begin(), points_.end(), [&](const auto& point) { return point->device() == device; });
  return found == points_.end() ? nullptr : *found;
}

StageStream::StageStream(c10::Device device) : device_(with_index(device)), stream_(own_stream(device_)) {}

std::shared_ptr<c10::Event> StageStream::record() const { return stream_ ? point_in(*stream_) : nullptr; }

void StageStream::wait(const std::shared_ptr<c10::Event>& point) const {
  if (point != nullptr) point->block(*stream_);
}

const StageStream::Way& StageStream::way_from(c10::Device device) {
  const auto found = std::find_if(ways_.begin(), ways_.end(), [&](const Way& way) { return way.from == device; });
  if (found != ways_.end()) return *found;
  ways_.push_back({device, own_stream(device), own_stream(device_)});
  return ways_.back();
}

at::Tensor StageStream::bring(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready) {
  if (tensor.device() != device_) {
    reads_host_ = reads_host_ || (tensor.is_cpu() && tensor.is_pinned());
    return copy(tensor, way_from(tensor.device()), ready);
  }
  if (stream_) {
    wait(ready);
    tensor.record_stream(*stream_);
  }
  return tensor;
}

at::Tensor StageStream::copy(const at::Tensor& tensor, const Way& way, const std::shared_ptr<c10::Event>& ready) const {
  if (way.there) {
    if (ready != nullptr) ready->block(*way.there);
    tensor.record_stream(*way.there);
  }
  const c10::OptionalStreamGuard there(way.there);
  const c10::OptionalStreamGuard here(way.here);
  // The CPU would not wait for a copy that goes on behind it.
  const at::Tensor copied = tensor.to(device_, /*non_blocking=*/!device_.is_cpu());
  if (way.here) {
    wait(point_in(*way.here));
    copied.record_stream(*stream_);
  }
  return copied;
}

void StageStream::finish_host_reads() {
  if (!std::exchange(reads_host_, false)) return;
  VirtualGuardImpl(device_.type()).synchronizeStream(*way_from(c10::kCPU).here);
}

void StageStream::wait_for_caller() const {
  if (stream_) wait(point_in(current_stream(device_)));
}

void StageStream::make_caller_wait() const {
  if (stream_) record()->block(current_stream(device_));
  for (const Way& way : ways_) {
    if (way.there) point_in(*way.there)->block(current_stream(way.from));
  }
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
    if (stream == nullptr) continue;
    stream->make_caller_wait();
    stream->finish_host_reads();
  }
}

at::Tensor on_host(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready) {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  if (ready != nullptr) ready->block(current_stream(tensor.device()));
  return tensor.to(at::kCPU, /*non_blocking=*/false);
}

}  // namespace gpipe::detail
