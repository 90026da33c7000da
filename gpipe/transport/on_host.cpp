#include "gpipe/transport/on_host.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace gpipe {

at::Tensor on_host(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready) {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  if (ready != nullptr) ready->block(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  return tensor.to(at::kCPU, /*non_blocking=*/false);
}

}  // namespace gpipe
