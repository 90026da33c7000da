// MpiCarrier: bytes over MPI, where libtorch has it and the ranks were started by it.
#pragma once

#include <memory>

#include "gpipe/transport/c10d/carrier.h"

namespace gpipe {

// Starts MPI, once a process. MPI ends with the process, unless a rank left alone or bytes were left on their way: then
// it is left as it is, because it would wait for the ranks that are gone. Every call makes a communicator of its own,
// so that nothing of an earlier world, or of the program's own messages, can be received. `group` is asked whether a
// rank is still there, and outlives the carrier.
//
// REQUIRES: all ranks call it. Throws EnvironmentError if MPI counts the ranks otherwise, or cannot be called from
// several threads, HandshakeError if the ranks do not come together within the timeout.
std::unique_ptr<Carrier> make_mpi_carrier(const World& world, c10d::ProcessGroupGloo& group);

}  // namespace gpipe
