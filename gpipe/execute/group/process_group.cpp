// ProcessGroup: a world of several processes, each of which runs one worker of one replica.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/group/gradient_sum.h"
#include "gpipe/execute/group/group.h"
#include "gpipe/execute/group/local_group.h"
#include "gpipe/execute/group/replicas.h"
#include "gpipe/execute/group/tied_values.h"
#include "gpipe/interpret/channel.h"
#include "gpipe/launch/world.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/c10d/remote_flow.h"

namespace gpipe {
namespace detail {
namespace {

// Those of this process, as long as a pipeline uses them: when the last one goes, all connections and threads go with
// it, and none is left for the end of the program.
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

// Of two ranks that run the same stages.
void check_same_tensors(const Fingerprint& one, int rank, const Fingerprint& other, int other_rank) {
  const auto [a, b] = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  if (a == one.end() && b == other.end()) return;
  const auto text = [](auto at, auto end) {
    return at == end ? std::string("missing") : fmt::format("\"{}\" {}", at->first, at->second);
  };
  throw FingerprintError(
      fmt::format("the ranks have different models: {} on rank {}, but {} on rank {}; build the same on all",
                  text(a, one.end()), rank, text(b, other.end()), other_rank),
      a == one.end() ? b->first : a->first, other_rank);
}

class ProcessGroup : public Group {
 public:
  explicit ProcessGroup(std::shared_ptr<Peers> peers)
      : peers_(std::move(peers)),
        gradient_sum_(world().num_replicas > 1 ? make_gradient_reducer(replicas_) : std::make_unique<GradientSum>()) {}

  const World& world() const override { return peers_->world(); }

  void check_num_workers(int num_workers) const override {
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
    throw InvalidArgument(fmt::format(
        "num_stages is {}, but {} started {} processes, and each runs one; start {} (gpipe launch -n {}), or "
        "set num_stages to {}",
        num_workers, name(world.launcher), world.num_stages(), num_workers, num_workers, world.num_stages()));
  }

  bool runs_worker(int worker) const override { return worker == own_worker_; }
  int num_own_workers(int /*num_workers*/) const override { return 1; }
  std::string host_of(int rank) const override { return peers_->place_of(rank).host; }

  // A rank that refuses tells the others, which would wait for it.
  void begin(const std::function<void(Fingerprint*)>& make) override {
    std::exception_ptr error;
    Fingerprint own;
    try {
      make(&own);
    } catch (const std::exception& exception) {
      error = std::current_exception();
      own.emplace_back("the error", exception.what());
    }
    try {
      compare(own);
    } catch (const FingerprintError&) {
      if (error != nullptr) std::rethrow_exception(error);
      throw;
    }
    if (error != nullptr) std::rethrow_exception(error);
  }

  void compare(const Fingerprint& fingerprint) override { peers_->compare(fingerprint); }

  std::vector<StepCall> agree(StepCall call, const std::function<void(StepCall&)>& prepare,
                              std::vector<WireRecord>* given) override {
    peers_->check();
    std::exception_ptr error;
    try {
      prepare(call);
    } catch (const std::exception& exception) {
      error = std::current_exception();
      call.refusal = exception.what();
      if (call.refusal.empty()) call.refusal = "an error without a text";
    }
    WireRecord own = to_record(call);
    if (given != nullptr) own.append(given->front());
    std::vector<StepCall> of_rank;
    std::vector<WireRecord> rests;
    for (const WireRecord& record : exchange_.gather(own)) {
      of_rank.push_back(read_step_call(record, &rests.emplace_back()));
    }
    if (error != nullptr) std::rethrow_exception(error);
    std::vector<StepCall> agreed = agreed_calls(of_rank, world().num_replicas);
    if (given != nullptr) {
      *given = std::move(rests);
    } else {
      for (const WireRecord& rest : rests) WireReader(rest, "this is not a call of a rank").finish();
    }
    return agreed;
  }

  std::vector<WireRecord> gather(const WireRecord& own) override { return exchange_.gather(own); }
  std::vector<WireRecord> collect(const WireRecord& own) override { return exchange_.collect(own); }
  Tensors broadcast(int worker, Tensors tensors) override {
    return exchange_.broadcast(rank_of_worker(worker), std::move(tensors));
  }
  WireRecord broadcast(int worker, WireRecord record) override {
    return exchange_.broadcast(rank_of_worker(worker), std::move(record));
  }
  std::string complete(StepResult& result, const StepReport& own, int last_worker) override {
    return merge(result, exchange_.gather(to_record(own, result)), world(), last_worker);
  }

  std::vector<WireRecord> gather_replicas(const WireRecord& own) override { return replicas_.gather(own); }

  void copy_first_replica(const Fingerprint& names, const Tensors& values) override {
    const std::vector<WireRecord> of_replica = replicas_.gather(detail::to_record(names));
    for (int replica = 1; replica < replicas_.size(); ++replica) {
      check_same_tensors(read_fingerprint(of_replica[0]), rank_of_worker(own_worker_, 0),
                         read_fingerprint(of_replica[replica]), rank_of_worker(own_worker_, replica));
    }
    replicas_.copy_first(values);
  }

  GradientSum& gradient_sum() override { return *gradient_sum_; }

  FlowEnds<Packet> connect(const ProvenSchedule& schedule, const FlowTensors& most) override {
    const std::size_t num_flows = schedule.table.flows.size();
    const int first = peers_->reserve_flows(static_cast<int>(num_flows));
    FlowEnds<Packet> ends;
    ends.sinks.resize(num_flows);
    ends.sources.resize(num_flows);
    for (std::size_t flow = 0; flow < num_flows; ++flow) {
      connect_flow(schedule, flow, first + static_cast<int>(flow), most, ends);
    }
    return ends;
  }

  std::function<void()> connect_ties(const std::vector<Tie>& ties, const std::vector<int>& worker_of_layer) override {
    return connect_tied_values(ties, worker_of_layer, *peers_);
  }

  bool has_failed() const override { return peers_->has_failed(); }
  [[noreturn]] void fail(std::exception_ptr error) override { peers_->fail(std::move(error)); }
  void leave(const std::function<void(const PeerError&)>& on_late_rank) override {
    peers_->leave_together(on_late_rank);
  }

 private:
  // In this rank's replica, or in another one.
  int rank_of_worker(int worker) const { return rank_of_worker(worker, world().replica()); }
  int rank_of_worker(int worker, int replica) const { return replica * world().num_stages() + worker; }

  // A channel inside the process, a flow to another one, or nothing.
  void connect_flow(const ProvenSchedule& schedule, std::size_t flow, int id, const FlowTensors& most,
                    FlowEnds<Packet>& ends) const {
    const FlowTable& table = schedule.table;
    const bool is_source = runs_worker(table.source_worker[flow]);
    const bool is_destination = runs_worker(table.destination_worker[flow]);
    if (is_source && is_destination) {
      const auto channel = std::make_shared<Channel<Packet>>(schedule.capacities[flow]);
      ends.sinks[flow] = channel;
      ends.sources[flow] = channel;
      return;
    }
    RemoteFlowOptions options;
    options.flow = table.flows[flow];
    options.id = id;
    options.capacity = schedule.capacities[flow];
    options.checksum = wants_checksums();
    const bool is_direct = options.flow.kind == FlowKind::kActivation || options.flow.kind == FlowKind::kGradient;
    options.limits.max_tensors = std::max(options.limits.max_tensors, is_direct ? most.direct : most.routed);
    if (is_source) {
      options.peer = rank_of_worker(table.destination_worker[flow]);
      ends.sinks[flow] = std::make_shared<FlowSender>(*peers_, options);
    } else if (is_destination) {
      options.peer = rank_of_worker(table.source_worker[flow]);
      options.pinned = !most.pinned.empty() && most.pinned[static_cast<std::size_t>(options.flow.destination)];
      ends.sources[flow] = std::make_shared<FlowReceiver>(*peers_, options);
    }
  }

  const std::shared_ptr<Peers> peers_;
  const int own_worker_ = peers_->world().stage();
  Exchange exchange_{*peers_};
  Replicas replicas_{*peers_};  // of which this is one, also if it is the only one
  const std::unique_ptr<GradientSum> gradient_sum_;
};

}  // namespace

std::unique_ptr<Group> Group::find(std::shared_ptr<Peers> peers) {
  if (peers == nullptr) peers = process_peers();
  if (peers == nullptr || peers->world().size == 1) return std::make_unique<LocalGroup>();
  peers->check();
  return std::make_unique<ProcessGroup>(std::move(peers));
}

}  // namespace detail

std::shared_ptr<Peers> connect(const World& world) { return std::make_shared<Peers>(world); }

std::shared_ptr<Peers> no_peers() { return std::make_shared<Peers>(World()); }

}  // namespace gpipe
