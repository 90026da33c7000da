#include "gpipe/transport/c10d/proven_device.h"

#include <gloo/transport/tcp/address.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/transport/c10d/gloo_pair.h"
#include "gpipe/transport/c10d/rank_listener.h"

namespace gpipe::detail {
namespace {

namespace tcp = gloo::transport::tcp;

// See Note [Proven pairs].
class ProvenPair final : public GlooPair {
 public:
  ProvenPair(tcp::Context* context, tcp::Device* device, int rank, const DeviceTerms& terms)
      : GlooPair(context, device, rank, context->getTimeout()),
        terms_(terms),
        own_rank_(context->rank),
        size_(context->size),
        listener_(listen_on(terms.address, 0)),
        own_address_(tcp::Address::fromSockName(listener_.get())) {}

  const tcp::Address& address() const override { return own_address_; }

  void connect(const std::vector<char>& bytes) override {
    const tcp::Address peer(bytes);
    try {
      take(connection_to(peer), peer, own_rank_ > rank_);
    } catch (...) {
      static_cast<ProvenDevice*>(device_)->note(std::current_exception());
      throw;
    }
  }

 private:
  FileDescriptor connection_to(const tcp::Address& peer) {
    FileDescriptor connection = own_rank_ > rank_ ? join_peer(peer) : welcome_peer();
    listener_.reset();
    if (!connection.is_open()) throw PeerError({rank_, "", -1, "", -1}, "it did not connect in time");
    return connection;
  }

  FileDescriptor join_peer(const tcp::Address& peer) const {
    Hello hello;
    hello.purpose = Purpose::kPair;
    hello.rank = static_cast<std::uint32_t>(own_rank_);
    hello.to_rank = static_cast<std::uint32_t>(rank_);
    hello.size = static_cast<std::uint32_t>(size_);
    const sockaddr_storage& address = peer.getSockaddr();
    return join(name_of(reinterpret_cast<const sockaddr*>(&address), sizeof address), terms_.secret, hello,
                deadline_in(terms_.timeout_seconds));
  }

  FileDescriptor welcome_peer() {
    RankListener listener(std::move(listener_), {terms_.secret, Purpose::kPair, own_rank_, size_, {rank_}});
    const Deadline deadline = deadline_in(terms_.timeout_seconds);
    while (milliseconds_until(deadline) > 0) {
      std::vector<pollfd> entries;
      listener.watch(entries);
      int milliseconds = milliseconds_until(deadline);
      if (listener.milliseconds() >= 0) milliseconds = std::min(milliseconds, listener.milliseconds());
      poll(entries.data(), entries.size(), milliseconds);
      std::vector<FileDescriptor> connections = listener.attend();
      if (!connections.empty()) return std::move(connections.front());
    }
    return {};
  }

  const DeviceTerms& terms_;  // of the device, which outlives its pairs
  const int own_rank_;
  const int size_;
  FileDescriptor listener_;
  const tcp::Address own_address_;
};

class ProvenContext : public GlooContext {
 public:
  ProvenContext(std::shared_ptr<tcp::Device> device, int own_rank, int num_ranks, const DeviceTerms& terms)
      : GlooContext(std::move(device), own_rank, num_ranks), terms_(terms) {}

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    pairs_[peer] = std::make_unique<ProvenPair>(this, device_.get(), peer, terms_);
    return pairs_[peer];
  }

 private:
  const DeviceTerms& terms_;
};

}  // namespace

std::shared_ptr<ProvenDevice> ProvenDevice::make(DeviceTerms terms) {
  tcp::attr attributes;
  attributes.hostname = terms.address;
  const tcp::attr resolved = tcp::CreateDeviceAttr(attributes);
  return std::shared_ptr<ProvenDevice>(new ProvenDevice(resolved, std::move(terms)));
}

ProvenDevice::ProvenDevice(const tcp::attr& attributes, DeviceTerms terms)
    : tcp::Device(attributes), terms_(std::move(terms)) {
  close_gloo_port(*this);
}

std::shared_ptr<gloo::transport::Context> ProvenDevice::createContext(int rank, int size) {
  auto context = std::make_shared<ProvenContext>(shared_from_this(), rank, size, terms_);
  const std::lock_guard<std::mutex> lock(mutex_);
  contexts_.push_back(context);
  return context;
}

void ProvenDevice::keep_errors(const std::function<void()>& work) {
  note(nullptr);
  try {
    work();
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (noted_ != nullptr) std::rethrow_exception(noted_);
    throw;
  }
}

void ProvenDevice::note(std::exception_ptr error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  noted_ = std::move(error);
}

void ProvenDevice::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& made : contexts_) {
    const auto context = made.lock();
    for (int rank = 0; context != nullptr && rank < context->size; ++rank) {
      if (rank != context->rank && context->getPair(rank) != nullptr) context->getPair(rank)->close();
    }
  }
}

}  // namespace gpipe::detail
