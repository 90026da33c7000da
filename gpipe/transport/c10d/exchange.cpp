#include "gpipe/transport/c10d/exchange.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "gpipe/transport/stage_stream.h"

namespace gpipe::detail {

namespace {

constexpr std::size_t kTensorsAPacket = 8;

// As what comes from other ranks is.
WireRecord all_on_host(const WireRecord& record) {
  Tensors tensors = record.tensors();
  for (at::Tensor& tensor : tensors) tensor = on_host(tensor);
  return {record.fields(), std::move(tensors)};
}

// Records of all ranks as one, and back.
WireRecord bundle(const std::vector<WireRecord>& by_rank) {
  std::vector<std::string> fields;
  Tensors tensors;
  for (const WireRecord& record : by_rank) {
    fields.push_back(encode_fields(record.fields()));
    tensors.insert(tensors.end(), record.tensors().begin(), record.tensors().end());
  }
  WireRecord bundle;
  bundle.add("fields", std::move(fields));
  bundle.add("tensors", tensors);
  return bundle;
}

std::vector<WireRecord> unbundle(const WireRecord& bundle, int num_ranks) {
  WireReader reader(bundle, "these are not the records of all ranks");
  const std::vector<std::string>& fields = reader.texts("fields");
  const Tensors tensors = reader.tensors("tensors");
  reader.finish();
  std::vector<WireRecord> by_rank;
  auto next = tensors.begin();
  for (const std::string& bytes : fields) {
    std::vector<WireField> own = decode_fields(bytes);
    const auto end = next + std::min(tensors.end() - next, static_cast<std::ptrdiff_t>(num_tensors(own)));
    by_rank.emplace_back(std::move(own), Tensors(std::exchange(next, end), end));
  }
  if (by_rank.size() == static_cast<std::size_t>(num_ranks) && next == tensors.end()) return by_rank;
  throw InvalidArgument(
      fmt::format("these are not the records of all ranks: there are {} of {}, and {} tensors too many", by_rank.size(),
                  num_ranks, tensors.end() - next));
}

}  // namespace

void Exchange::Star::send_all(const WireRecord& record, std::int64_t step) const {
  for (const auto& sender : senders) {
    if (sender != nullptr) send(*sender, record, step);
  }
  for (const auto& sender : senders) {
    if (sender != nullptr) sender->flush();
  }
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

void send(FlowSender& sender, const WireRecord& record, std::int64_t step) {
  const Tensors tensors = encode(record);
  for (std::size_t first = 0; first < tensors.size(); first += kTensorsAPacket) {
    const std::size_t end = std::min(first + kTensorsAPacket, tensors.size());
    Packet packet;
    packet.step = step;
    packet.tensors.assign(tensors.begin() + static_cast<std::ptrdiff_t>(first),
                          tensors.begin() + static_cast<std::ptrdiff_t>(end));
    sender.put(std::move(packet));
  }
}

WireRecord receive(FlowReceiver& receiver, std::int64_t step) {
  Tensors tensors = receiver.take_of_step(step).tensors;
  std::vector<WireField> fields = decode_fields(tensors.empty() ? at::Tensor() : tensors.front());
  const std::size_t count = 1 + num_tensors(fields);
  while (tensors.size() < count) {
    const Tensors more = receiver.take_of_step(step).tensors;
    if (more.empty()) throw InvalidArgument("this is not a record of a rank: it has a packet without tensors");
    tensors.insert(tensors.end(), more.begin(), more.end());
  }
  tensors.erase(tensors.begin());
  return {std::move(fields), std::move(tensors)};
}

std::vector<WireRecord> Exchange::gather(const WireRecord& own) {
  peers_.check();
  Star& star = world_star();
  ++world_number_;
  const World& world = peers_.world();
  if (world.rank != 0) {
    send(*star.senders[0], own, world_number_);
    return unbundle(receive(*star.receivers[0], world_number_), world.size);
  }
  std::vector<WireRecord> by_rank = receive_all(own);
  star.send_all(bundle(by_rank), world_number_);
  return by_rank;
}

std::vector<WireRecord> Exchange::collect(const WireRecord& own) {
  peers_.check();
  Star& star = world_star();
  ++world_number_;
  if (peers_.world().rank != 0) {
    star.send_all(own, world_number_);
    return {};
  }
  return receive_all(own);
}

std::vector<WireRecord> Exchange::receive_all(const WireRecord& own) {
  std::vector<WireRecord> by_rank = {all_on_host(own)};
  for (int rank = 1; rank < peers_.world().size; ++rank) {
    by_rank.push_back(receive(*world_star().receivers[static_cast<std::size_t>(rank)], world_number_));
  }
  return by_rank;
}

WireRecord Exchange::broadcast(int root, WireRecord record) {
  peers_.check();
  Star& star = replica_star(root);
  ++replica_number_;
  if (peers_.world().rank != root) return receive(*star.receivers[static_cast<std::size_t>(root)], replica_number_);
  star.send_all(record, replica_number_);
  return record;
}

Tensors Exchange::broadcast(int root, Tensors tensors) {
  WireRecord own;
  own.add("tensors", tensors);
  const WireRecord record = broadcast(root, std::move(own));
  WireReader reader(record, "these are not the tensors of a rank");
  tensors = reader.tensors("tensors");
  reader.finish();
  return tensors;
}

}  // namespace gpipe::detail
