// RemoteFlow: one flow between two processes. Its two ends are a FlowSink and a FlowSource, as a Channel is.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/interpret/flow_ends.h"
#include "gpipe/schedule/flow.h"
#include "gpipe/transport/c10d/packet_header.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/packet.h"

namespace gpipe::detail {

// Both ends give the same.
struct RemoteFlowOptions {
  Flow flow;
  std::string name = {};  // for errors, of what is no flow between stages; empty: the flow's
  // Its number among all flows of the run, from 0 to 2^20. Each is used once while the peers live: Gloo remembers what
  // a receiver has asked for, even if that is gone.
  int id = 0;
  int peer = 0;      // the rank at the other end
  int capacity = 1;  // packets that may be on their way from the sender, and that may wait at the receiver
  FlowLimits limits;
  bool checksum = false;  // the sender adds one, of the tensors' bytes
  bool pinned = false;    // of the receiver: the tensors go on to a device, from pinned memory
};

// What both ends have in common: the wait for something to happen, and what may happen instead.
//
// A wait ends with
//   CancelledError   after cancel()
//   PeerError        if the peer is gone, or silent for the world's timeout
//   the first error  if this rank's part in the world has ended
class FlowEnd {
 public:
  FlowEnd(const FlowEnd&) = delete;
  FlowEnd& operator=(const FlowEnd&) = delete;

 protected:
  using Work = c10::intrusive_ptr<c10d::Work>;

  FlowEnd(Peers& peers, RemoteFlowOptions options);
  ~FlowEnd() = default;

  // Makes every wait, now and until `allow_waits`, throw.
  void cancel_waits();
  void allow_waits();
  // Ends the thread, and leaves what is on its way.
  void stop();
  // Makes a change with the lock held, and lets everybody who waits here look again.
  template <typename Change>
  void change(const Change& make);

  // Waits until `ready`, with the lock held; throws as above, without the lock. `verb` says what for: "send".
  template <typename Ready>
  void wait_until(std::unique_lock<std::mutex>& lock, const Ready& ready, int micro_batch, const char* verb);
  // For the thread: whether the operation has ended well. Otherwise the peer is lost, or the flow is stopping.
  bool finish(const Work& work);
  // Nothing will come or go any more, because of the first such error.
  void lose(const std::exception_ptr& error);
  PeerPlace place(int micro_batch) const;

  Peers& peers_;
  const RemoteFlowOptions options_;
  std::thread thread_;  // that waits for Gloo
  std::mutex mutex_;    // of everything below
  std::condition_variable changed_;
  bool cancelled_ = false;
  bool stopping_ = false;      // this rank's part has ended, or this end is being destroyed
  std::exception_ptr lost_;    // why nothing will come or go any more
  std::vector<Work> waiting_;  // what the thread waits for

 private:
  // Ends all waits.
  void abort();

  int listener_ = -1;
};

// Thread-safe; packets go in the order of the puts.
class FlowSender : public FlowEnd, public FlowSink<Packet> {
 public:
  // REQUIRES: `peers` outlives it; one sender and one receiver a flow.
  FlowSender(Peers& peers, RemoteFlowOptions options);
  // Waits for what is on its way, unless it was cancelled or an exception is being handled.
  ~FlowSender() override;

  // Waits for room, starts to send and returns. Nothing may write to the tensors until they are sent. A stashed tensor
  // arrives with version 0 if it has not been changed since it was stashed, else with -1. Throws InvalidArgument, and
  // sends nothing, for what `describe` refuses.
  void put(Packet packet) override;
  // Waits until all is sent: from then on the tensors may be written to.
  void flush();
  void cancel() override { cancel_waits(); }
  // REQUIRES: nobody is inside put. What was put goes on its way.
  void reset() override { allow_waits(); }

 private:
  // A packet whose bytes are on their way from a device is posted by the thread, once they are there, and so are those
  // behind it; others are posted by who puts them.
  struct Outgoing {
    SentPacket packet;        // until it is posted
    std::vector<Work> works;  // after that; they keep the bytes alive
    bool is_posted = false;
  };

  void run();
  std::vector<Work> post(SentPacket& packet);
  // False if the flow is stopping.
  bool wait_for_bytes(const SentPacket& packet);
  // For the thread: false if the flow is stopping or lost.
  bool post_when_whole(Outgoing& outgoing);

  HostCopies copies_;
  std::deque<Outgoing> on_the_way_;
};

// Thread-safe; packets come in the order they were put. Receives ahead, up to the capacity.
class FlowReceiver : public FlowEnd, public FlowSource<Packet> {
 public:
  FlowReceiver(Peers& peers, RemoteFlowOptions options);
  ~FlowReceiver() override;

  // Waits for a packet, into fresh tensors.
  Packet take();
  // The same. ProtocolError if it is of another micro-batch.
  Packet take(int micro_batch) override;
  // Waits for a packet of that step, and drops those of earlier steps. ProtocolError if one of a later step comes.
  Packet take_of_step(std::int64_t step);
  void cancel() override { cancel_waits(); }
  // REQUIRES: nobody is inside take. What has arrived stays.
  void reset() override { allow_waits(); }

 private:
  void run();
  bool receive(ReceivedPacket& received);
  // `micro_batch` is for errors; -1: any.
  Packet next(int micro_batch);
  [[noreturn]] void refuse(int micro_batch, const std::string& why);

  std::deque<Packet> arrived_;
};

}  // namespace gpipe::detail
