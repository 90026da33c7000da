#include "gpipe/execute/group/tied_values.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {

// From one rank to another: ties of which the first has the owner, and the second a user.
struct TiedValues::Way {
  std::vector<std::size_t> ties;
  int user_worker = 0;
  std::unique_ptr<FlowSender> sender;      // one of the two
  std::unique_ptr<FlowReceiver> receiver;  //
};

namespace {

void set_value(const Tie::Use& user, const at::Tensor& value) {
  at::Tensor weight = user.weight;
  if (weight.requires_grad() != value.requires_grad()) weight.requires_grad_(value.requires_grad());
  const at::Tensor plain = value.detach().to(weight.device());
  if (weight.sizes() != plain.sizes()) {
    throw InvalidArgument(
        fmt::format("\"{}\" of layer {} cannot be tied: it is [{}], but its owner, on another rank, is [{}]", user.key,
                    user.layer, fmt::join(weight.sizes(), ", "), fmt::join(plain.sizes(), ", ")));
  }
  if (weight.dtype() != plain.dtype()) {
    weight.mutable_grad().reset();
    weight.set_data(plain);
    return;
  }
  const at::NoGradGuard no_grad;
  if (!at::equal(weight, plain)) weight.copy_(plain);  // else a graph that has it would take it for changed
}

}  // namespace

TiedValues::TiedValues(const std::vector<Tie>& ties, const std::vector<int>& worker_of_layer, Peers& peers)
    : ties_(ties) {
  const World& world = peers.world();
  const int own_worker = world.stage();
  std::map<std::pair<int, int>, std::vector<std::size_t>> by_workers;
  for (std::size_t tie = 0; tie < ties.size(); ++tie) {
    const int owner = worker_of_layer[ties[tie].owner.layer];
    for (const Tie::Use& user : ties[tie].users) {
      const int worker = worker_of_layer[user.layer];
      std::vector<std::size_t>& indices = by_workers[{owner, worker}];
      if (worker != owner && (indices.empty() || indices.back() != tie)) indices.push_back(tie);
    }
  }
  int id = peers.reserve_flows(static_cast<int>(by_workers.size()));
  for (auto& [workers, indices] : by_workers) {
    const auto& [owner, user] = workers;
    RemoteFlowOptions options;
    options.name = fmt::format("tied weights {} -> {}", owner, user);
    options.id = id++;
    if (indices.empty() || (owner != own_worker && user != own_worker)) continue;
    auto way = std::make_unique<Way>();
    way->ties = std::move(indices);
    way->user_worker = user;
    options.capacity = static_cast<int>(way->ties.size()) / 8 + 2;  // so that two ranks can send to each other
    options.peer = world.replica() * world.num_stages() + (owner == own_worker ? user : owner);
    if (owner == own_worker) {
      way->sender = std::make_unique<FlowSender>(peers, options);
    } else {
      way->receiver = std::make_unique<FlowReceiver>(peers, options);
    }
    ways_.push_back(std::move(way));
  }
}

TiedValues::~TiedValues() = default;

void TiedValues::bring() {
  ++number_;
  for (const auto& way : ways_) {
    if (way->sender == nullptr) continue;
    Tensors values;
    std::vector<bool> requires_grad;
    for (const auto tie : way->ties) {
      const at::Tensor& weight = ties_[tie].owner.weight;
      values.push_back(weight.detach());
      requires_grad.push_back(weight.requires_grad());
    }
    detail::WireRecord record;
    record.add("values", values);
    record.add("requires_grad", requires_grad);
    send(*way->sender, record, number_);
  }
  for (const auto& way : ways_) {
    if (way->receiver == nullptr) continue;
    const detail::WireRecord record = receive(*way->receiver, number_);
    detail::WireReader reader(record, "these are not tied weights");
    reader.check_num_rows({"values", "requires_grad"}, way->ties.size());
    const Tensors values = reader.tensors("values");
    const std::vector<bool> requires_grad = reader.flags("requires_grad");
    reader.finish();
    for (std::size_t index = 0; index < way->ties.size(); ++index) {
      at::Tensor value = values[index];
      value.requires_grad_(requires_grad[index]);
      for (const Tie::Use& user : ties_[way->ties[index]].users) {
        if (user.module != nullptr) set_value(user, value);
      }
    }
  }
}

}  // namespace gpipe
