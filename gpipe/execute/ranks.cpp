#include "gpipe/execute/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/replicas.h"
#include "gpipe/launch/world.h"
#include "gpipe/model/skip.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/c10d/remote_flow.h"
#include "gpipe/transport/channel.h"

namespace gpipe {
namespace {

// Those of this process, as long as a pipeline uses them: when the last one goes, all connections and threads go with it, and
// none is left for the end of the program.
std::shared_ptr<Peers> process_peers() {
  static std::mutex mutex;
  static std::weak_ptr<Peers> known;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Peers> peers = known.lock();
  if (peers != nullptr) return peers;
  const World world = read_world();
  if (world.size == 1) return nullptr;
  peers = std::make_shared<Peers>(world);
  known = peers;
  return peers;
}

// GPIPE_CHECKSUM: the receiver of a packet compares a checksum of its bytes, which the sender sends along.
bool wants_checksums() {
  const char* const value = std::getenv("GPIPE_CHECKSUM");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

class RemoteSink : public FlowSink<Packet> {
 public:
  RemoteSink(Peers& peers, const RemoteFlowOptions& options) : sender_(peers, options) {}
  void put(Packet packet) override {
    // The tensors that arrive have not been changed yet, however often those here were before they were stashed.
    for (std::size_t index = 0; index < packet.versions.size(); ++index) {
      const at::Tensor& tensor = packet.tensors[index];
      const bool is_unchanged = !tensor.defined() || version_of(tensor) == packet.versions[index];
      packet.versions[index] = is_unchanged ? 0 : -1;
    }
    sender_.put(packet);
  }
  void cancel() override { sender_.cancel(); }
  void reset() override { sender_.reset(-1); }

 private:
  FlowSender sender_;
};

class RemoteSource : public FlowSource<Packet> {
 public:
  RemoteSource(Peers& peers, const RemoteFlowOptions& options) : receiver_(peers, options) {}
  Packet take(int micro_batch) override { return receiver_.take(micro_batch); }
  void cancel() override { receiver_.cancel(); }
  void reset() override { receiver_.reset(-1); }

 private:
  FlowReceiver receiver_;
};

}  // namespace

std::shared_ptr<Peers> no_peers() { return std::make_shared<Peers>(World()); }

std::shared_ptr<Ranks> Ranks::find(std::shared_ptr<Peers> peers) {
  if (peers == nullptr) peers = process_peers();
  if (peers == nullptr || peers->world().size == 1) return nullptr;
  peers->check();
  return std::make_shared<Ranks>(std::move(peers));
}

Ranks::Ranks(std::shared_ptr<Peers> peers)
    : peers_(std::move(peers)), own_worker_(peers_->world().stage()), exchange_(std::make_unique<Exchange>(*peers_)) {
  if (num_replicas() > 1) replicas_ = std::make_unique<Replicas>(*peers_);
}

Ranks::~Ranks() = default;

void Ranks::check_num_workers(int num_workers) const {
  const World& world = peers_->world();
  if (world.num_stages() == num_workers) return;
  const std::int64_t wanted = std::int64_t{num_workers} * world.num_replicas;
  if (world.num_replicas > 1) {
    throw InvalidArgument(fmt::format(
        "num_stages is {}, but {} started {} processes for {} replicas of {} stages; start {} (gpipe launch -n {} "
        "--replicas {}), or set num_stages to {}",
        num_workers, name(world.launcher), world.size, world.num_replicas, world.num_stages(), wanted, wanted,
        world.num_replicas, world.num_stages()));
  }
  throw InvalidArgument(
      fmt::format("num_stages is {}, but {} started {} processes, and each runs one; start {} (gpipe launch -n {}), or "
                  "set num_stages to {}",
                  num_workers, name(world.launcher), world.num_stages(), num_workers, num_workers, world.num_stages()));
}

int Ranks::num_replicas() const { return peers_->world().num_replicas; }

int Ranks::own_replica() const { return peers_->world().replica(); }

int Ranks::rank_of_worker(int worker, int replica) const { return replica * peers_->world().num_stages() + worker; }

FlowEnds<Packet> Ranks::connect(const FlowTable& table, const std::vector<int>& capacities, int max_tensors) const {
  const std::size_t num_flows = table.flows.size();
  const int first = peers_->reserve_flows(static_cast<int>(num_flows));
  FlowEnds<Packet> ends;
  ends.sinks.resize(num_flows);
  ends.sources.resize(num_flows);
  for (std::size_t flow = 0; flow < num_flows; ++flow) {
    const bool is_source = table.source_worker[flow] == own_worker_;
    const bool is_destination = table.destination_worker[flow] == own_worker_;
    if (is_source && is_destination) {
      const auto channel = std::make_shared<Channel<Packet>>(capacities[flow]);
      ends.sinks[flow] = channel;
      ends.sources[flow] = channel;
      continue;
    }
    RemoteFlowOptions options;
    options.flow = table.flows[flow];
    options.id = first + static_cast<int>(flow);
    options.capacity = capacities[flow];
    options.checksum = wants_checksums();
    const bool is_direct = options.flow.kind == FlowKind::kActivation || options.flow.kind == FlowKind::kGradient;
    if (!is_direct) options.limits.max_tensors = std::max(options.limits.max_tensors, max_tensors);
    if (is_source) {
      options.peer = rank_of_worker(table.destination_worker[flow]);
      ends.sinks[flow] = std::make_shared<RemoteSink>(*peers_, options);
    } else if (is_destination) {
      options.peer = rank_of_worker(table.source_worker[flow]);
      ends.sources[flow] = std::make_shared<RemoteSource>(*peers_, options);
    }
  }
  return ends;
}

void Ranks::fail(std::exception_ptr error) const { peers_->fail(std::move(error)); }

}  // namespace gpipe
