// Peers: the other ranks of a world, connected over c10d.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/launch/world.h"
#include "gpipe/os/own_process.h"
#include "gpipe/transport/c10d/carrier.h"
#include "gpipe/transport/c10d/failure_report.h"
#include "gpipe/transport/c10d/proven_device.h"
#include "gpipe/transport/c10d/proven_store.h"
#include "gpipe/transport/c10d/store_server.h"
#include "gpipe/transport/fingerprint.h"

namespace gpipe {

// Whom a flow connects. Replicas need not have the same number of flows inside, so that they are counted apart.
enum class FlowScope { kReplica, kWorld };

// Every connection has passed the handshake with the world's secret, and is bound to the world's interface (else to the
// one that leads to rank 0). Once all are made, no port is open.
//
// The first error that a rank throws because of another ends its part in the world: all connections are reset, so that
// the other ranks notice, and everything throws that error from then on. A rank that leaves in between, with nothing
// more to say, is no error for those who want nothing from it.
//
// Thread-safe.
class Peers {
 public:
  // Waits for all ranks. Throws
  //   EnvironmentError   naming GPIPE_SECRET, if there is none and the ranks are not all on the loopback, or GPIPE_CARRIER, if
  //                      what it asks for is not there
  //   FingerprintError   if the ranks have been given different carriers
  //   HandshakeError     if rank 0 refuses, is no gpipe, or of another version
  //   PeerError          naming the first rank that has not come within the timeout
  explicit Peers(World world);
  // In a process that was forked since, the connections stay as they are, for the parent's use.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  const World& world() const { return world_; }
  // REQUIRES: a world of more than one.
  c10d::ProcessGroupGloo& group() { return *group_; }
  // For the headers of packets, and for their bytes; may be the same.
  Carrier& header_carrier() { return *header_carrier_; }
  Carrier& carrier() { return byte_carrier_ != nullptr ? *byte_carrier_ : *header_carrier_; }
  c10d::Store& store() { return *store_; }

  // Where a rank is, for an error.
  PeerPlace place_of(int rank) const;

  // Every rank gives its own. On a difference every rank throws FingerprintError, with the same text. May be called
  // again.
  void compare(const Fingerprint& fingerprint);

  // Until all ranks have called it: as the last thing, so that none leaves while others still talk to it. Throws
  // PeerError.
  void leave_together();

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
  bool has_failed() const;

  // Calls `wake` once when this rank's part ends, until `forget`; at once if it has ended. `wake` must not call back.
  int on_failure(std::function<void()> wake);
  void forget(int listener);

 private:
  void connect();
  std::string meeting_address() const;
  void meet();
  void connect_gloo();
  void connect_carrier();
  std::vector<detail::WireRecord> gather(const std::string& name, const detail::WireRecord& own);
  std::optional<FailureReport> failure_report_of_rank(int rank);
  std::exception_ptr find_culprit(const std::exception_ptr& error, const FailureReport& own);
  void let_others_read(const std::exception_ptr& error);
  double grace_seconds() const;

  const OwnProcess process_;
  const World world_;
  const CarrierKind carrier_kind_;
  std::unique_ptr<StoreServer> server_;  // on rank 0
  std::string own_address_;
  c10::intrusive_ptr<ProvenStore> store_;
  std::shared_ptr<ProvenDevice> device_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::unique_ptr<Carrier> header_carrier_;
  std::unique_ptr<Carrier> byte_carrier_;  // null: the other one
  std::vector<std::string> hosts_;         // by rank
  int num_gathered_ = 0;

  mutable std::mutex mutex_;  // of everything below
  mutable std::condition_variable ended_;
  bool ending_ = false;
  std::exception_ptr error_;  // once it is clear who is to blame
  std::map<FlowScope, int> num_flows_;
  std::map<int, std::function<void()>> listeners_;
  int next_listener_ = 0;
};

}  // namespace gpipe
