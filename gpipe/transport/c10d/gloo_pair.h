// GlooPair, GlooContext: a pair that takes over a connection which somebody else has made. In libtorch 2's Gloo a
// device listens at one port for all its pairs; in that of 1.13 each pair has a port of its own.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

#include <memory>
#include <mutex>

#include "gpipe/os/file_descriptor.h"

#if __has_include(<gloo/transport/tcp/listener.h>)

namespace gpipe::detail {

class GlooPair : public gloo::transport::tcp::Pair {
 public:
  using Pair::Pair;

 protected:
  void take(FileDescriptor connection, const gloo::transport::tcp::Address& /*peer*/, bool /*has_connected*/) {
    {
      const std::lock_guard<std::mutex> lock(m_);
      throwIfException();
      state_ = CONNECTING;
    }
    connectCallback(std::make_shared<gloo::transport::tcp::Socket>(connection.release()), {});
  }
};

class GlooContext : public gloo::transport::tcp::Context {
 public:
  using Context::Context;

  // The way of all transports: that of TCP expects one port for all pairs.
  void createAndConnectAllPairs(gloo::IStore& store) override {
    gloo::transport::Context::createAndConnectAllPairs(store);
  }
};

// The device's port is private, and nothing closes it. An explicit instantiation may name private members.
template <std::shared_ptr<gloo::transport::tcp::Listener> gloo::transport::tcp::Device::*listener,
          std::shared_ptr<gloo::transport::tcp::Socket> gloo::transport::tcp::Listener::*socket>
struct GlooPort {
  friend void close_gloo_port(gloo::transport::tcp::Device& device) {
    gloo::transport::tcp::Listener& listening = *(device.*listener);
    device.unregisterDescriptor((listening.*socket)->fd(), &listening);
    (listening.*socket).reset();
  }
};
template struct GlooPort<&gloo::transport::tcp::Device::listener_, &gloo::transport::tcp::Listener::listener_>;
// Nobody has heard of the port that a device opens by itself.
void close_gloo_port(gloo::transport::tcp::Device& device);

}  // namespace gpipe::detail

#else

namespace gpipe::detail {

class GlooPair : public gloo::transport::tcp::Pair {
 public:
  GlooPair(gloo::transport::tcp::Context* context, gloo::transport::tcp::Device* device, int rank,
           std::chrono::milliseconds timeout)
      : Pair(context, device, rank, timeout) {
    // Gloo has opened a port by itself, which nobody has heard of.
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    fd_ = -1;
  }

 protected:
  void take(FileDescriptor connection, const gloo::transport::tcp::Address& peer, bool has_connected) {
    const std::lock_guard<std::mutex> lock(m_);
    throwIfException();
    is_client_ = has_connected;
    peer_ = peer;
    fd_ = connection.release();
    handleConnected();
  }
};

using GlooContext = gloo::transport::tcp::Context;

inline void close_gloo_port(gloo::transport::tcp::Device& /*device*/) {}

}  // namespace gpipe::detail

#endif
