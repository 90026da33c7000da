#include "gpipe/execute/split/memory_book.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <map>
#include <unordered_set>

#include "gpipe/model/optimizer_slots.h"

namespace gpipe::detail {

void MemoryBook::open(const Cut& cut, const std::vector<ChainLayer>& layers, std::int64_t limit_bytes) {
  int begin = 0;
  for (std::size_t stage = 0; stage < cut.layers_per_stage.size(); ++stage) {
    const int end = begin + cut.layers_per_stage[stage];
    stages_.emplace_back();
    stages_.back().account = std::make_shared<MemoryAccount>(
        end - begin == 1 ? fmt::format("stage {} (layer {})", stage, begin)
                         : fmt::format("stage {} (layers {}-{})", stage, begin, end - 1),
        limit_bytes);
    begin = end;
  }
  for (const ChainLayer& layer : layers) {
    Stage& stage = stages_[static_cast<std::size_t>(cut.stage_of(layer.index))];
    for (const at::Tensor& parameter : layer.layer.module->parameters()) stage.parameters.push_back(parameter);
    for (const at::Tensor& buffer : layer.layer.module->buffers()) stage.buffers.push_back(buffer);
  }
}

std::shared_ptr<MemoryAccount> MemoryBook::account(int stage) const {
  return is_open() ? stages_[static_cast<std::size_t>(stage)].account : nullptr;
}

void MemoryBook::book_layers() const {
  for (const Stage& stage : stages_) {
    for (const at::Tensor& parameter : stage.parameters) {
      transfer(parameter, stage.account);
      if (parameter.grad().defined()) transfer(parameter.grad(), stage.account);
    }
    for (const at::Tensor& buffer : stage.buffers) transfer(buffer, stage.account);
  }
}

void MemoryBook::book(torch::optim::Optimizer& optimizer) {
  std::map<const void*, Stage*> stage_of_parameter;
  for (Stage& stage : stages_) {
    for (const at::Tensor& parameter : stage.parameters) {
      stage_of_parameter.emplace(parameter.unsafeGetTensorImpl(), &stage);
    }
  }
  if (stage_of_parameter.empty()) return;
  for (Stage& stage : stages_) stage.optimizer_bytes = 0;
  Tensors booked;
  try {
    for (const OptimizerSlot& slot : optimizer_slots(optimizer)) {
      const auto found = stage_of_parameter.find(slot.parameter.unsafeGetTensorImpl());
      if (found == stage_of_parameter.end()) continue;
      transfer(slot.state, found->second->account);
      booked.push_back(slot.state);
      found->second->optimizer_bytes += static_cast<std::int64_t>(slot.state.nbytes());
    }
  } catch (...) {
    for (const at::Tensor& state : booked) transfer(state, nullptr);
    for (Stage& stage : stages_) stage.optimizer_bytes = 0;
    throw;
  }
}

void MemoryBook::reset_peaks() const {
  for (const Stage& stage : stages_) stage.account->reset_peak();
}

void MemoryBook::set_input_bytes(int stage, std::int64_t bytes) {
  if (is_open()) stages_[static_cast<std::size_t>(stage)].input_bytes = bytes;
}

std::vector<StageMemory> MemoryBook::memory() const {
  std::vector<StageMemory> memory;
  std::unordered_set<const void*> counted;  // tied weights are one
  for (const Stage& stage : stages_) {
    StageMemory one;
    one.live_bytes = stage.account->live_bytes();
    one.peak_bytes = stage.account->peak_bytes();
    one.optimizer_bytes = stage.optimizer_bytes;
    one.input_bytes = stage.input_bytes;
    one.parameter_bytes = bytes_of(stage.buffers);
    for (const at::Tensor& parameter : stage.parameters) {
      const bool is_new = counted.insert(parameter.storage().unsafeGetStorageImpl()).second;
      if (is_new) one.parameter_bytes += static_cast<std::int64_t>(parameter.nbytes());
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined()) one.gradient_bytes += static_cast<std::int64_t>(gradient.nbytes());
    }
    memory.push_back(one);
  }
  return memory;
}

}  // namespace gpipe::detail
