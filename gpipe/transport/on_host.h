// on_host: a tensor, wherever it is, for those who can use it on the CPU only.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace gpipe {

// The tensor, or a copy of it on the CPU, whole when this returns: of what it is at the point `ready`, or, without one,
// after what the thread has enqueued on its device.
at::Tensor on_host(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready = nullptr);

}  // namespace gpipe
