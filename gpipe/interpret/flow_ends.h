// The two ends of a flow, wherever the other one is: in the same process, see Channel, or in another, see
// remote_flow.h.
#pragma once

#include <memory>
#include <vector>

#include "gpipe/error.h"

namespace gpipe::detail {

// Thrown out of a wait when another worker has failed. The caller of the step sees that worker's error, not this one.
class CancelledError : public Error {
 public:
  CancelledError() : Error("cancelled: another worker failed first") {}
};

template <typename Message>
class FlowSink {
 public:
  virtual ~FlowSink() = default;
  // Waits for room.
  virtual void put(Message message) = 0;
  // Makes every wait, now and until `reset`, throw CancelledError.
  virtual void cancel() = 0;
  // Before a step. REQUIRES: nobody waits.
  virtual void reset() = 0;
};

template <typename Message>
class FlowSource {
 public:
  virtual ~FlowSource() = default;
  // Waits for the message of that micro-batch, which is the next one.
  virtual Message take(int micro_batch) = 0;
  virtual void cancel() = 0;
  virtual void reset() = 0;
};

// By flow of a flow table; null where the end is another process's.
template <typename Message>
struct FlowEnds {
  std::vector<std::shared_ptr<FlowSink<Message>>> sinks;
  std::vector<std::shared_ptr<FlowSource<Message>>> sources;
};

}  // namespace gpipe::detail
