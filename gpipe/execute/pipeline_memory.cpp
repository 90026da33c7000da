// The memory of a pipeline: who holds which bytes.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/optimizer_slots.h"

namespace gpipe {

void PipelineImpl::make_accounts() {
  int begin = 0;
  for (std::size_t stage = 0; stage < layers_per_stage_.size(); ++stage) {
    const int end = begin + layers_per_stage_[stage];
    accounts_.push_back(std::make_shared<MemoryAccount>(
        end - begin == 1 ? fmt::format("stage {} (layer {})", stage, begin)
                         : fmt::format("stage {} (layers {}-{})", stage, begin, end - 1),
        options_.memory_limit_bytes()));
    begin = end;
  }
  optimizer_bytes_.resize(accounts_.size());
  input_bytes_.resize(accounts_.size());
  stage_parameters_.resize(accounts_.size());
  stage_buffers_.resize(accounts_.size());
  for (const ChainLayer& layer : built_layers()) {
    const auto stage = static_cast<std::size_t>(stage_of(layer.index));
    for (const at::Tensor& parameter : layer.layer.module->parameters()) stage_parameters_[stage].push_back(parameter);
    for (const at::Tensor& buffer : layer.layer.module->buffers()) stage_buffers_[stage].push_back(buffer);
  }
}

void PipelineImpl::book_layers() {
  if (accounts_.empty()) make_accounts();
  for (std::size_t stage = 0; stage < accounts_.size(); ++stage) {
    for (const at::Tensor& parameter : stage_parameters_[stage]) {
      transfer(parameter, accounts_[stage]);
      if (parameter.grad().defined()) transfer(parameter.grad(), accounts_[stage]);
    }
    for (const at::Tensor& buffer : stage_buffers_[stage]) transfer(buffer, accounts_[stage]);
  }
}

void PipelineImpl::book(torch::optim::Optimizer& optimizer) {
  const CallLock::Scope lock(calls_, "book");
  std::map<const void*, std::size_t> stage_of_parameter;
  std::vector<std::int64_t> bytes(accounts_.size());
  for (std::size_t stage = 0; stage < accounts_.size(); ++stage) {
    for (const at::Tensor& parameter : stage_parameters_[stage]) {
      stage_of_parameter.emplace(parameter.unsafeGetTensorImpl(), stage);
    }
  }
  if (stage_of_parameter.empty()) return;
  Tensors booked;
  try {
    for (const OptimizerSlot& slot : optimizer_slots(optimizer)) {
      const auto found = stage_of_parameter.find(slot.parameter.unsafeGetTensorImpl());
      if (found == stage_of_parameter.end()) continue;
      transfer(slot.state, accounts_[found->second]);
      booked.push_back(slot.state);
      bytes[found->second] += static_cast<std::int64_t>(slot.state.nbytes());
    }
  } catch (...) {
    for (const at::Tensor& state : booked) transfer(state, nullptr);
    std::fill(optimizer_bytes_.begin(), optimizer_bytes_.end(), 0);
    throw;
  }
  optimizer_bytes_ = std::move(bytes);
}

std::vector<StageMemory> PipelineImpl::memory() const {
  std::vector<StageMemory> memory;
  std::set<const void*> counted;  // tied weights are one
  for (std::size_t stage = 0; stage < accounts_.size(); ++stage) {
    StageMemory one;
    one.live_bytes = accounts_[stage]->live_bytes();
    one.peak_bytes = accounts_[stage]->peak_bytes();
    one.optimizer_bytes = optimizer_bytes_[stage];
    one.input_bytes = input_bytes_[stage];
    one.parameter_bytes = bytes_of(stage_buffers_[stage]);
    for (const at::Tensor& parameter : stage_parameters_[stage]) {
      const bool is_new = counted.insert(parameter.storage().unsafeGetStorageImpl()).second;
      if (is_new) one.parameter_bytes += bytes_of({parameter});
      one.gradient_bytes += bytes_of({parameter.grad()});
    }
    memory.push_back(one);
  }
  return memory;
}

}  // namespace gpipe
