// Carrier: what moves the bytes of packets from rank to rank. Their headers, and all else that ranks say, go over Gloo.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "gpipe/launch/world.h"

namespace gpipe::detail {

// Thread-safe.
class Carrier {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  virtual ~Carrier() = default;

  // `bytes` is one-dimensional and on the CPU. What is sent to a rank for a flow is received in order, by receives of
  // as many bytes. A work keeps its bytes alive; its wait, confined to one thread, throws if the peer is gone, and
  // returns false after abort, which any thread may call.
  virtual Work send(at::Tensor bytes, int peer, int flow) = 0;
  virtual Work receive(at::Tensor bytes, int peer, int flow) = 0;

  // This rank is about to leave the world: together with all others, or alone, because of an error.
  virtual void leave(bool /*together*/) {}
};

enum class CarrierKind { kGloo, kMpi };

// GPIPE_CARRIER: "gloo", also if it is not set, or "mpi". Throws EnvironmentError for another one, and for one that is
// not in this build.
CarrierKind wanted_carrier();
std::string name(CarrierKind kind);

// The same on all ranks, at the same time, if it is not Gloo's. REQUIRES: `group` outlives it. Throws as
// make_mpi_carrier.
std::unique_ptr<Carrier> make_carrier(CarrierKind kind, const World& world, c10d::ProcessGroupGloo& group);

// Bytes over MPI, where libtorch has it and the ranks were started by it. Starts MPI, once a process. MPI ends with the
// process, unless a rank left alone or bytes were left on their way: then it is left as it is, because it would wait
// for the ranks that are gone. Every call makes a communicator of its own, so that nothing of an earlier world, or of
// the program's own messages, can be received. `group` is asked whether a rank is still there.
//
// REQUIRES: all ranks call it. Throws EnvironmentError if MPI counts the ranks otherwise, or cannot be called from
// several threads, HandshakeError if the ranks do not come together within the timeout.
std::unique_ptr<Carrier> make_mpi_carrier(const World& world, c10d::ProcessGroupGloo& group);

}  // namespace gpipe::detail
