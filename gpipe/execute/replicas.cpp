#include "gpipe/execute/replicas.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

namespace gpipe {

Replicas::Replicas(Peers& peers) : peers_(peers), own_(peers.world().replica()) {
  const World& world = peers.world();
  const int count = world.num_replicas;
  senders_.resize(static_cast<std::size_t>(count));
  receivers_.resize(static_cast<std::size_t>(count));
  const int first = peers.reserve_flows(count * count * world.num_stages(), FlowScope::kWorld);
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

void Replicas::put(int replica, const Tensors& tensors) {
  Packet packet;
  packet.tensors = tensors;
  senders_[replica]->put(packet);
}

Tensors Replicas::take(int replica) { return receivers_[replica]->take().tensors; }

void Replicas::cancel() {
  for (int replica = 0; replica < size(); ++replica) {
    if (replica == own_) continue;
    senders_[replica]->cancel();
    receivers_[replica]->cancel();
  }
}

std::vector<Tensors> Replicas::gather(const Tensors& own) {
  peers_.check();
  std::vector<Tensors> by_replica;
  for (int replica = 0; replica < size(); ++replica) {
    if (replica != own_) put(replica, own);
  }
  for (int replica = 0; replica < size(); ++replica) by_replica.push_back(replica == own_ ? own : take(replica));
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
      target.copy_(take(0).at(0));
      continue;
    }
    for (int replica = 1; replica < size(); ++replica) put(replica, {tensor.detach()});
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
    if (replica != own_) put(replica, {part(replica)});
  }
  at::Tensor sum;
  for (int replica = 0; replica < size(); ++replica) {
    const at::Tensor term = replica == own_ ? part(own_) : take(replica).at(0);
    if (replica == 0) {
      sum = term.clone();
    } else {
      sum.add_(term);
    }
  }
  for (int replica = 0; replica < size(); ++replica) {
    if (replica != own_) put(replica, {sum});
  }
  part(own_).copy_(sum);
  for (int replica = 0; replica < size(); ++replica) {
    // What another has added up, it has received before.
    if (replica != own_) part(replica).copy_(take(replica).at(0));
  }
}

}  // namespace gpipe
