#include "gpipe/transport/c10d/exchange.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpipe/transport/on_host.h"

namespace gpipe {
namespace {

constexpr std::size_t kTensorsAPacket = 8;

// As what comes from other ranks is.
Tensors all_on_host(Tensors tensors) {
  for (at::Tensor& tensor : tensors) tensor = on_host(tensor);
  return tensors;
}

// How many tensors follow, as the first one.
Tensors with_count(const Tensors& tensors) {
  Tensors counted = {at::scalar_tensor(static_cast<std::int64_t>(tensors.size()), at::kLong)};
  counted.insert(counted.end(), tensors.begin(), tensors.end());
  return counted;
}

}  // namespace

at::Tensor to_tensor(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string to_text(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

Exchange::Star Exchange::make_star(int root, int first_rank, int num_ranks, FlowScope scope) {
  const World& world = peers_.world();
  const int first = peers_.reserve_flows(2 * num_ranks, scope);
  Star star;
  star.senders.resize(static_cast<std::size_t>(world.size));
  star.receivers.resize(static_cast<std::size_t>(world.size));
  for (int rank = first_rank; rank < first_rank + num_ranks; ++rank) {
    if (rank == root || (world.rank != root && world.rank != rank)) continue;
    const int peer = world.rank == root ? rank : root;
    RemoteFlowOptions options;
    options.name = "exchange";
    options.peer = peer;
    options.capacity = 4;
    const int outward = first + 2 * (rank - first_rank);  // from the root
    options.id = world.rank == root ? outward : outward + 1;
    star.senders[static_cast<std::size_t>(peer)] = std::make_unique<FlowSender>(peers_, options);
    options.id = world.rank == root ? outward + 1 : outward;
    star.receivers[static_cast<std::size_t>(peer)] = std::make_unique<FlowReceiver>(peers_, options);
  }
  return star;
}

Exchange::Star& Exchange::world_star() {
  if (!world_star_) world_star_ = make_star(0, 0, peers_.world().size, FlowScope::kWorld);
  return *world_star_;
}

Exchange::Star& Exchange::replica_star(int root) {
  const auto found = replica_stars_.find(root);
  if (found != replica_stars_.end()) return found->second;
  const World& world = peers_.world();
  const int first_rank = world.replica() * world.num_stages();
  if (root < first_rank || root >= first_rank + world.num_stages()) {
    throw InvalidArgument(fmt::format("rank {} is not of the replica of rank {}", root, world.rank));
  }
  return replica_stars_[root] = make_star(root, first_rank, world.num_stages(), FlowScope::kReplica);
}

void send(FlowSender& sender, const Tensors& tensors, std::int64_t step) {
  const Tensors counted = with_count(tensors);
  for (std::size_t first = 0; first < counted.size(); first += kTensorsAPacket) {
    const std::size_t end = std::min(first + kTensorsAPacket, counted.size());
    Packet packet;
    packet.step = step;
    packet.tensors.assign(counted.begin() + static_cast<std::ptrdiff_t>(first),
                          counted.begin() + static_cast<std::ptrdiff_t>(end));
    sender.put(packet);
  }
}

Tensors receive(FlowReceiver& receiver, std::int64_t step) {
  receiver.reset(step);
  Tensors tensors = receiver.take().tensors;
  const auto count = static_cast<std::size_t>(tensors.at(0).item<std::int64_t>());
  tensors.erase(tensors.begin());
  while (tensors.size() < count) {
    const Tensors more = receiver.take().tensors;
    tensors.insert(tensors.end(), more.begin(), more.end());
  }
  return tensors;
}

std::vector<Tensors> Exchange::gather(const Tensors& own) {
  peers_.check();
  Star& star = world_star();
  ++world_number_;
  const World& world = peers_.world();
  std::vector<Tensors> by_rank(static_cast<std::size_t>(world.size));
  if (world.rank != 0) {
    send(*star.senders[0], own, world_number_);
    Tensors all = receive(*star.receivers[0], world_number_);
    auto next = all.begin();
    for (Tensors& tensors : by_rank) {
      const auto count = (next++)->item<std::int64_t>();
      tensors.assign(next, next + count);
      next += count;
    }
    return by_rank;
  }
  by_rank[0] = all_on_host(own);
  Tensors all = with_count(by_rank[0]);
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    by_rank[rank] = receive(*star.receivers[rank], world_number_);
    const Tensors counted = with_count(by_rank[rank]);
    all.insert(all.end(), counted.begin(), counted.end());
  }
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) send(*star.senders[rank], all, world_number_);
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) star.senders[rank]->flush();  // the caller may change them
  return by_rank;
}

std::vector<Tensors> Exchange::collect(const Tensors& own) {
  peers_.check();
  Star& star = world_star();
  ++world_number_;
  if (peers_.world().rank != 0) {
    send(*star.senders[0], own, world_number_);
    star.senders[0]->flush();
    return {};
  }
  std::vector<Tensors> by_rank = {all_on_host(own)};
  for (std::size_t rank = 1; rank < star.receivers.size(); ++rank) {
    by_rank.push_back(receive(*star.receivers[rank], world_number_));
  }
  return by_rank;
}

std::vector<std::string> Exchange::gather(const std::string& own) {
  std::vector<std::string> texts;
  for (const Tensors& tensors : gather(Tensors{to_tensor(own)})) texts.push_back(to_text(tensors.at(0)));
  return texts;
}

Tensors Exchange::broadcast(int root, Tensors tensors) {
  peers_.check();
  Star& star = replica_star(root);
  ++replica_number_;
  if (peers_.world().rank != root) return receive(*star.receivers[static_cast<std::size_t>(root)], replica_number_);
  for (const auto& sender : star.senders) {
    if (sender != nullptr) send(*sender, tensors, replica_number_);
  }
  for (const auto& sender : star.senders) {
    if (sender != nullptr) sender->flush();
  }
  return tensors;
}

std::string Exchange::broadcast(int root, const std::string& text) {
  return to_text(broadcast(root, Tensors{to_tensor(text)}).at(0));
}

}  // namespace gpipe
