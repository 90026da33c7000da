// StageStream: the order of work on devices that run behind the program. On CPU there is nothing to order.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <vector>

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// A stream of one's own on that device; nothing on CPU. See Note [Streams of a backward].
c10::optional<c10::Stream> own_stream(c10::Device device);

// The one that is current in this thread.
c10::Stream current_stream(c10::Device device);

// Behind what is enqueued in that stream now.
std::shared_ptr<c10::Event> point_in(const c10::Stream& stream);

// Points in the streams that are current in the caller's thread, behind what the caller has enqueued there: its tensors
// may be read after them.
class CallerPoints {
 public:
  // On the devices of these tensors, unless they have one already.
  void record(const Tensors& tensors);
  // Null on CPU, and where none was recorded.
  std::shared_ptr<c10::Event> on(c10::Device device) const;

 private:
  std::vector<std::shared_ptr<c10::Event>> points_;
};

// Note [Copies between devices]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A copy from one device to another runs in the stream that is current on its source, between two points of the stream
// that is current on its target. So it would stand in the way of the stage's own work, and of copies to other stages,
// if these streams were the stage's and the default one. Each stage has streams of its own for each device that tensors
// come from: one there, which waits for the sender, and one here, in whose memory the copy is made. The stage's stream
// waits for the copy only.
//
// Note [Streams of a backward]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Autograd runs the backward of an operation in the stream of its forward. libtorch 1.13 remembers that stream on CUDA
// only: on another type of devices the backward would run in the default stream, in no order with a stage's own. So
// stages, and copies, use the default stream there.

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
  // REQUIRES: this is not on CPU.
  void wait(const std::shared_ptr<c10::Event>& point) const;

  // The tensor, or a copy of it on this device, for what is enqueued in this stream from now on. It is read after
  // `ready`; null: it is whole already. Its memory is not used again before it has been read. Defined.
  at::Tensor bring(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready);
  // Returns when the pinned memory of the host that was brought here has been read: its owner may fill it again.
  void finish_host_reads();

  // Between this stream and those that are current in the calling thread: what is enqueued here waits for what is
  // there, and the other way round, also where tensors were brought from.
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
  // The streams of copies from one device, see Note [Copies between devices]; none on a CPU.
  struct Way {
    c10::Device from;
    c10::optional<c10::Stream> there;
    c10::optional<c10::Stream> here;
  };

  // Made when it is first needed.
  const Way& way_from(c10::Device device);
  at::Tensor copy(const at::Tensor& tensor, const Way& way, const std::shared_ptr<c10::Event>& ready) const;

  const c10::Device device_;
  c10::optional<c10::Stream> stream_;
  std::vector<Way> ways_;
  bool reads_host_ = false;  // later, since the last time that was waited for
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

  // Once, behind the work. Then the caller may also fill the pinned memory again that the work has read.
  void make_caller_wait();

 private:
  std::vector<std::shared_ptr<StageStream>> streams_;
};

// For those who can use a tensor on the CPU only: the tensor, or a copy of it on the CPU, whole when this returns, of
// what it is at the point `ready`, or, without one, after what the thread has enqueued on its device.
at::Tensor on_host(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& ready = nullptr);

}  // namespace gpipe::detail
