#include "gpipe/execute/group/tied_values.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {
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

class TiedValues {
 public:
  TiedValues(const std::vector<Tie>& ties, const std::vector<int>& worker_of_layer, Peers& peers) : ties_(ties) {
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
    for (const auto& [workers, indices] : by_workers) {
      const auto& [owner, user] = workers;
      RemoteFlowOptions options;
      options.name = fmt::format("tied weights {} -> {}", owner, user);
      options.id = id++;
      options.capacity = static_cast<int>(indices.size()) / 8 + 2;  // so that two ranks can send to each other
      options.peer = world.replica() * world.num_stages() + (owner == own_worker ? user : owner);
      if (indices.empty()) continue;
      if (owner == own_worker) to_users_.emplace_back(indices, std::make_unique<FlowSender>(peers, options));
      if (user == own_worker) from_owners_.emplace_back(indices, std::make_unique<FlowReceiver>(peers, options));
    }
  }

  void bring() {
    ++number_;
    for (const auto& [ties, sender] : to_users_) {
      Tensors values;
      std::vector<bool> requires_grad;
      for (const std::size_t tie : ties) {
        const at::Tensor& weight = ties_[tie].owner.weight;
        values.push_back(weight.detach());
        requires_grad.push_back(weight.requires_grad());
      }
      WireRecord record;
      record.add("values", values);
      record.add("requires_grad", requires_grad);
      send(*sender, record, number_);
    }
    for (const auto& [ties, receiver] : from_owners_) {
      const WireRecord record = receive(*receiver, number_);
      WireReader reader(record, "these are not tied weights");
      reader.check_num_rows({"values", "requires_grad"}, ties.size());
      const Tensors values = reader.tensors("values");
      const std::vector<bool> requires_grad = reader.flags("requires_grad");
      reader.finish();
      for (std::size_t index = 0; index < ties.size(); ++index) {
        at::Tensor value = values[index];
        value.requires_grad_(requires_grad[index]);
        for (const Tie::Use& user : ties_[ties[index]].users) {
          if (user.module != nullptr) set_value(user, value);
        }
      }
    }
  }

 private:
  // Ties of which one rank has the owner and another one a user, with this rank's end of the flow between them.
  template <typename End>
  using Way = std::pair<std::vector<std::size_t>, std::unique_ptr<End>>;

  const std::vector<Tie>& ties_;
  std::vector<Way<FlowSender>> to_users_;
  std::vector<Way<FlowReceiver>> from_owners_;
  std::int64_t number_ = 0;  // of the step
};

}  // namespace

std::function<void()> connect_tied_values(const std::vector<Tie>& ties, const std::vector<int>& worker_of_layer,
                                          Peers& peers) {
  return [values = std::make_shared<TiedValues>(ties, worker_of_layer, peers)] { values->bring(); };
}

}  // namespace gpipe::detail
