#include "gpipe/model/update_in_blocks.h"

#include <ATen/Parallel.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/types.h>

#include <algorithm>
#include <typeindex>
#include <utility>

#include "gpipe/model/optimizer_slots.h"

namespace gpipe::detail {
namespace {

bool wins_by_blocks(const torch::optim::Optimizer& optimizer) {
  const std::type_index kind = typeid(optimizer);
  return kind == typeid(torch::optim::Adam) || kind == typeid(torch::optim::AdamW) ||
         kind == typeid(torch::optim::RMSprop) || kind == typeid(torch::optim::Adagrad);
}

bool is_plain(const at::Tensor& tensor, const at::Tensor& parameter) {
  return tensor.layout() == at::kStrided && tensor.device().is_cpu() && tensor.is_contiguous() &&
         tensor.scalar_type() == parameter.scalar_type() && tensor.numel() == parameter.numel();
}

at::Tensor part_of(const at::Tensor& tensor, std::int64_t begin, std::int64_t count) {
  return tensor.view(-1).narrow(0, begin, count);
}

// Gradients that an optimizer does not see while this lives, so that it leaves their parameters alone.
class HiddenGradients {
 public:
  HiddenGradients() = default;
  ~HiddenGradients() {
    for (auto& [parameter, gradient] : hidden_) parameter.mutable_grad() = std::move(gradient);
  }
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

  void hide(const at::Tensor& parameter) {
    hidden_.emplace_back(parameter, parameter.grad());
    parameter.mutable_grad().reset();
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden_;
};

}  // namespace

UpdateInBlocks::UpdateInBlocks(const MakeOptimizer& make) : block_(torch::zeros({1})) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{block_});
  of_block_ = make(std::move(groups));
  if (!wins_by_blocks(*of_block_)) of_block_.reset();
}

bool UpdateInBlocks::fits(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  if (parameter.numel() <= kBlockElements || !parameter.grad().defined()) return false;
  if (!at::isFloatingType(parameter.scalar_type()) || !is_plain(parameter, parameter)) return false;
  if (!is_plain(parameter.grad(), parameter)) return false;
  const auto state = optimizer.state().find(optimizer_state_key(parameter));
  if (state == optimizer.state().end()) return false;  // its first step makes it
  const auto slots = tensors_of_state(*state->second);
  return std::all_of(slots.begin(), slots.end(),
                     [&](const auto& slot) { return !slot.second->defined() || is_plain(*slot.second, parameter); });
}

void UpdateInBlocks::update(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const torch::NoGradGuard no_grad;
  torch::optim::OptimizerParamState& whole = *optimizer.state().at(optimizer_state_key(parameter));
  const auto slots_of_whole = tensors_of_state(whole);
  auto& of_block = of_block_->state()[optimizer_state_key(block_)];
  for (std::int64_t begin = 0; begin < parameter.numel(); begin += kBlockElements) {
    const std::int64_t count = std::min(kBlockElements, parameter.numel() - begin);
    block_.set_data(part_of(parameter, begin, count));
    block_.mutable_grad() = part_of(parameter.grad(), begin, count);
    of_block = whole.clone();
    for (auto& [name, slot] : tensors_of_state(*of_block)) {
      if (slot->defined()) *slot = part_of(*slot, begin, count);
    }
    of_block_->step();
  }
  // All blocks counted the same step: the last has what is no tensor, the whole state the tensors.
  const auto slots_of_block = tensors_of_state(*of_block);
  for (std::size_t slot = 0; slot < slots_of_block.size(); ++slot) {
    *slots_of_block[slot].second = std::move(*slots_of_whole[slot].second);
  }
  optimizer.state().at(optimizer_state_key(parameter)) = std::move(of_block);
  of_block_->state().clear();
  block_.set_data(torch::zeros({1}));
  block_.mutable_grad().reset();
  parameter.unsafeGetTensorImpl()->bump_version();  // that of the block is its own
}

void UpdateInBlocks::step(torch::optim::Optimizer& optimizer) {
  HiddenGradients updated;
  // Several threads would cut the whole parameter elsewhere, between the elements of a vector.
  if (of_block_ != nullptr && at::get_num_threads() == 1) {
    for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
      of_block_->param_groups().front().set_options(group.options().clone());
      for (const at::Tensor& parameter : group.params()) {
        if (!fits(optimizer, parameter)) continue;
        update(optimizer, parameter);
        updated.hide(parameter);
      }
    }
  }
  optimizer.step();
}

}  // namespace gpipe::detail
