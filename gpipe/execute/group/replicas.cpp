#include "gpipe/execute/group/replicas.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {

Replicas::Replicas(Peers& peers) : peers_(peers), own_(peers.world().replica()) {
  const World& world = peers.world();
  const int count = world.num_replicas;
  senders_.resize(static_cast<std::size_t>(count));
  receivers_.resize(static_cast<std::size_t>(count));
  const int first = peers.reserve_flows(std::int64_t{count} * world.size, FlowScope::kWorld);
  for (int replica = 0; replica < count; ++replica) {
    if (replica == own_) continue;
    const auto id = [&](int from, int to) { return first + (world.stage() * count + from) * count + to; };
    RemoteFlowOptions options;
    options.name = fmt::format("replicas of stage {}", world.stage());
    options.peer = replica * world.num_stages() + world.stage();
    options.capacity = 2;
    options.id = id(own_, replica);
    senders_[replica] = std::make_unique<FlowSender>(peers, options);
    options.id = id(replica, own_);
    receivers_[replica] = std::make_unique<FlowReceiver>(peers, options);
  }
}

void Replicas::put(int replica, Kind kind, const Tensors& tensors) {
  Packet packet;
  packet.micro_batch = kind;
  packet.tensors = tensors;
  senders_[replica]->put(std::move(packet));
}

Tensors Replicas::take(int replica, Kind kind) {
  Packet packet = receivers_[replica]->take();
  if (packet.micro_batch != kind) fail(replica, "is at another place of the step");
  return std::move(packet.tensors);
}

at::Tensor Replicas::take_like(int replica, Kind kind, const at::Tensor& own) {
  const at::Tensor tensor = take(replica, kind).at(0);
  if (tensor.sizes() != own.sizes() || tensor.scalar_type() != own.scalar_type()) {
    fail(replica, fmt::format("has [{}] of {} where replica {} has [{}] of {}", fmt::join(tensor.sizes(), ", "),
                              c10::toString(tensor.scalar_type()), own_, fmt::join(own.sizes(), ", "),
                              c10::toString(own.scalar_type())));
  }
  return tensor;
}

void Replicas::fail(int replica, const std::string& what) const {
  throw FingerprintError(
      fmt::format("replica {} of stage {} {}; all replicas have to train the same parameters, and to freeze the same",
                  replica, peers_.world().stage(), what),
      "the gradients", replica * peers_.world().num_stages() + peers_.world().stage());
}

void Replicas::cancel() {
  for (int replica = 0; replica < size(); ++replica) {
    if (replica == own_) continue;
    senders_[replica]->cancel();
    receivers_[replica]->cancel();
  }
}

std::vector<WireRecord> Replicas::gather(const WireRecord& own) {
  peers_.check();
  const Tensors tensors = encode(own);
  std::vector<WireRecord> by_replica;
  for (int replica = 0; replica < size(); ++replica) {
    if (replica != own_) put(replica, kGather, tensors);
  }
  for (int replica = 0; replica < size(); ++replica) {
    by_replica.push_back(replica == own_ ? own : decode(take(replica, kGather)));
  }
  for (const auto& sender : senders_) {
    if (sender != nullptr) sender->flush();  // the caller may change them
  }
  return by_replica;
}

void Replicas::copy_first(const Tensors& tensors) {
  peers_.check();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    if (own_ != 0) {
      at::Tensor target = tensor.detach();
      target.copy_(take_like(0, kCopy, target));
      continue;
    }
    for (int replica = 1; replica < size(); ++replica) put(replica, kCopy, {tensor.detach()});
  }
  for (const auto& sender : senders_) {
    if (sender != nullptr) sender->flush();
  }
}

void Replicas::add_up(at::Tensor& vector) {
  peers_.check();
  const at::NoGradGuard no_grad;
  const std::int64_t length = vector.numel();
  const auto part = [&](int replica) {
    const std::int64_t begin = length * replica / size();
    return vector.narrow(0, begin, length * (replica + 1) / size() - begin);
  };
  for (int replica = 0; replica < size(); ++replica) {
    if (replica != own_) put(replica, kPart, {part(replica)});
  }
  at::Tensor sum;
  for (int replica = 0; replica < size(); ++replica) {
    const at::Tensor term = replica == own_ ? part(own_) : take_like(replica, kPart, part(own_));
    if (replica == 0) {
      sum = term.clone();
    } else {
      sum.add_(term);
    }
  }
  for (int replica = 0; replica < size(); ++replica) {
    if (replica != own_) put(replica, kSum, {sum});
  }
  part(own_).copy_(sum);
  for (int replica = 0; replica < size(); ++replica) {
    // What another has added up, it has received before.
    if (replica != own_) part(replica).copy_(take_like(replica, kSum, part(replica)));
  }
}

}  // namespace gpipe::detail
