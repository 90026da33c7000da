// ProvenDevice: Gloo over TCP, whose connections pass the handshake before Gloo reads a byte from them.
//
// Note [Proven pairs]
// ~~~~~~~~~~~~~~~~~~~
// By itself, Gloo takes the first connection to a pair's port for the peer, interprets what comes, and ends the process
// if that is not right. Here a pair listens at a RankListener instead, or connects by the handshake, and hands Gloo a
// connection whose other end has proven itself. A stranger at the port is turned away. The port is closed once the peer
// has come: a running job has no open port.
#pragma once

#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace gpipe::detail {

struct DeviceTerms {
  std::string address;  // numeric; to bind to
  std::string secret;
  double timeout_seconds = 60;  // for a peer to connect
};

// Thread-safe.
class ProvenDevice : public gloo::transport::tcp::Device {
 public:
  static std::shared_ptr<ProvenDevice> make(DeviceTerms terms);

  // A pair's connect throws HandshakeError, or PeerError, with the rank only, if the peer does not come in time.
  // REQUIRES: all ranks connect to the others in ascending order, as Gloo's full mesh does.
  std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override;

  // Runs `work`, which connects pairs, and throws what they have thrown: libtorch 2 throws an error of its own instead.
  void keep_errors(const std::function<void()>& work);
  // What a pair's connect has thrown.
  void note(std::exception_ptr error);

  // Resets every connection, so that the other ranks notice at once. Does not end this rank's waits: abort them.
  void close();

 private:
  ProvenDevice(const gloo::transport::tcp::attr& attributes, DeviceTerms terms);

  const DeviceTerms terms_;
  std::mutex mutex_;
  std::exception_ptr noted_;
  std::vector<std::weak_ptr<gloo::transport::Context>> contexts_;
};

}  // namespace gpipe::detail
