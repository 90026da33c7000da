#include "gpipe/transport/host_copies.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "gpipe/transport/stage_stream.h"

namespace gpipe::detail {
namespace {

at::Tensor close_together(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

}  // namespace

c10::Stream HostCopies::stream_on(c10::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found =
      std::find_if(streams_.begin(), streams_.end(), [&](const c10::Stream& own) { return own.device() == device; });
  if (found != streams_.end()) return *found;
  streams_.push_back(*own_stream(device));
  return streams_.back();
}

HostCopies::Copy HostCopies::of(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready) {
  if (!tensor.is_cuda()) return {close_together(on_host(tensor.detach(), ready)), nullptr};
  const c10::Stream stream = stream_on(tensor.device());
  (ready != nullptr ? ready : point_in(current_stream(tensor.device())))->block(stream);
  tensor.record_stream(stream);
  const c10::StreamGuard guard(stream);
  const at::Tensor there = close_together(tensor);
  Copy copy;
  copy.tensor =
      at::empty_strided(there.sizes(), there.strides(), at::TensorOptions(there.scalar_type()).pinned_memory(true));
  copy.tensor.copy_(there, /*non_blocking=*/true);
  copy.whole = point_in(stream);
  return copy;
}

}  // namespace gpipe::detail
