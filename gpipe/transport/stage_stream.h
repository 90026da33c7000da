// StageStream: the order of work on devices that run behind the program. On CPU there is nothing to order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <vector>

namespace gpipe::detail {

// A stage's device, with a stream of the stage's own if the device has streams. Goes through libtorch's device-generic
// guards: no device is named here, and none is needed to build.
//
// Thread-compatible.
class StageStream {
 public:
  explicit StageStream(c10::Device device);

  c10::Device device() const { return device_; }
  // Nothing on CPU.
  const c10::optional<c10::Stream>& stream() const { return stream_; }

  // A point in this stream, after what is enqueued now; null on CPU.
  std::shared_ptr<c10::Event> record() const;
  // What is enqueued here from now on waits for that point, on whichever device of this kind it is. Null: does nothing.
  void wait(const std::shared_ptr<c10::Event>& point) const;

  // Between this stream and the one that is current in the calling thread: what is enqueued here waits for what is
  // there, and the other way round.
  void wait_for_caller() const;
  void make_caller_wait() const;

  // While it lives, this device and stream are current in the thread.
  class Guard {
   public:
    explicit Guard(const StageStream& stream) : guard_(stream.stream()) {}

   private:
    c10::OptionalStreamGuard guard_;
  };

 private:
  std::shared_ptr<c10::Event> record(const c10::Stream& stream) const;

  const c10::Device device_;
  c10::optional<c10::Stream> stream_;
};

// Orders the work of streams between what the caller has enqueued on their devices before it and will enqueue after it.
class CallerOrder {
 public:
  // Null: there is nothing to order.
  explicit CallerOrder(std::vector<std::shared_ptr<StageStream>> streams);
  // After work that has failed the order still holds, as far as the device can keep it.
  ~CallerOrder();
  CallerOrder(const CallerOrder&) = delete;
  CallerOrder& operator=(const CallerOrder&) = delete;

  // Once, behind the work.
  void make_caller_wait();

 private:
  std::vector<std::shared_ptr<StageStream>> streams_;
};

// For those who can use a tensor on the CPU only: the tensor, or a copy of it on the CPU, whole when this returns, of
// what it is at the point `ready`, or, without one, after what the thread has enqueued on its device.
at::Tensor on_host(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready = nullptr);

}  // namespace gpipe::detail
