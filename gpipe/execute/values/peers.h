// The processes that run a pipeline, for a program that connects them itself.
#pragma once

#include <memory>

#include "gpipe/launch/world.h"

namespace gpipe {

namespace detail {
class Peers;
}

// The other ranks of a world, connected. Opaque: it is made by the functions below and given to PipelineOptions::peers.
using Peers = detail::Peers;

// Connects the ranks of that world, and waits for all of them. Several pipelines may use the same ones. Throws
// EnvironmentError, FingerprintError, HandshakeError or PeerError, which say what to do.
std::shared_ptr<Peers> connect(const World& world);

// A world of one, so that the stages are threads of this process under a launcher, too.
std::shared_ptr<Peers> no_peers();

}  // namespace gpipe
