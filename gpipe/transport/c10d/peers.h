// Peers: the other ranks of a world, connected over c10d.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/launch/world.h"
#include "gpipe/os/own_process.h"
#include "gpipe/transport/c10d/carrier.h"
#include "gpipe/transport/c10d/meeting.h"
#include "gpipe/transport/c10d/part_end.h"
#include "gpipe/transport/c10d/proven_device.h"
#include "gpipe/transport/fingerprint.h"

namespace gpipe::detail {

// Whom a flow connects. Replicas need not have the same number of flows inside, so that they are counted apart.
enum class FlowScope { kReplica, kWorld };

// Every connection has passed the handshake with the world's secret, and is bound to the world's interface (else to the
// one that leads to rank 0). Once all are made, no port is open.
//
// The first error that a rank throws because of another ends its part in the world: all connections are reset, so that
// the other ranks notice, and everything throws that error from then on. A rank that leaves in between, with nothing
// more to say, is no error for those who want nothing from it.
//
// Thread-safe. What is about other ranks REQUIRES a world of more than one.
class Peers {
 public:
  // Waits for all ranks. Throws as Meeting does, and
  //   EnvironmentError   naming GPIPE_CARRIER, if what it asks for is not there
  //   FingerprintError   if the ranks have been given different carriers
  explicit Peers(World world);
  // In a process that was forked since, the connections stay as they are, for the parent's use.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  const World& world() const { return world_; }
  c10d::ProcessGroupGloo& group() { return *group_; }
  // For the headers of packets, and for their bytes; may be the same.
  Carrier& header_carrier() { return *header_carrier_; }
  Carrier& carrier() { return byte_carrier_ != nullptr ? *byte_carrier_ : *header_carrier_; }
  c10d::Store& store() { return *meeting_->store(); }

  // Where a rank is, for an error.
  PeerPlace place_of(int rank) const { return meeting_->place_of(rank); }

  // Every rank gives its own. On a difference every rank throws FingerprintError, with the same text. May be called
  // again.
  void compare(const Fingerprint& fingerprint);

  // Until all ranks have called it: as the last thing, so that none leaves while others still talk to it. Calls
  // `on_late` once, with an error that names the rank that it waits for, if that has not come for 5 s, or for an eighth
  // of the timeout if that is less. Throws PeerError.
  void leave_together(const std::function<void(const PeerError&)>& on_late = {});

  // So many numbers for flows, from the one it returns: between ranks of one replica, or of the whole world. REQUIRES:
  // the ranks of a replica, or all, make the same calls in the same order.
  int reserve_flows(std::int64_t count, FlowScope scope = FlowScope::kReplica);

  // Ends this rank's part, unless it has ended, and throws the first error. That is `error`, or, if it is a PeerError
  // and the other ranks know more, one about the rank that is to blame: see Note [Who is to blame]. `silent` says that
  // the peer gave no sign of life for the timeout. Rank 0, which has the store, stays for a moment until the others
  // have read it.
  [[noreturn]] void fail(std::exception_ptr error, bool silent = false);
  // Throws the first error, if there is one, and CallError in a process that was forked since.
  void check() const;
  bool has_failed() const { return end_.has_begun(); }

  // Calls `wake` once when this rank's part ends, until `forget`; at once if it has ended. `wake` must not call back.
  int on_failure(std::function<void()> wake) { return end_.add_listener(std::move(wake)); }
  void forget(int listener) { end_.forget(listener); }

 private:
  void connect_gloo();

  const OwnProcess process_;
  const World world_;
  std::unique_ptr<Meeting> meeting_;  // this and what follows are null in a world of one
  std::shared_ptr<ProvenDevice> device_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::unique_ptr<Carrier> header_carrier_;
  std::unique_ptr<Carrier> byte_carrier_;  // null: the other one
  PartEnd end_;
  std::mutex mutex_;  // of the numbers
  std::map<FlowScope, int> num_flows_;
};

}  // namespace gpipe::detail
