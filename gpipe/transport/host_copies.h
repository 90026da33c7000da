// HostCopies: tensors of devices on their way to the memory of the host, while the program goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <vector>

namespace gpipe::detail {

// Thread-safe.
class HostCopies {
 public:
  struct Copy {
    at::Tensor tensor;                  // on the CPU, detached, its elements close together
    std::shared_ptr<c10::Event> whole;  // it has its values from then on; null: from now on
  };

  // Of what the tensor is at the point `ready`; see on_host. Its strides stay if its elements lie close together. A
  // copy from CUDA is made later, in a stream of its own, in pinned memory; of others this waits for the values. What
  // is on the CPU is not copied unless there are gaps.
  Copy of(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready);

 private:
  // Of copies from that device.
  c10::Stream stream_on(c10::Device device);

  std::mutex mutex_;
  std::vector<c10::Stream> streams_;
};

}  // namespace gpipe::detail
