#include "gpipe/torchscript/script_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/no_init_scope.h"
#include "gpipe/model/skip.h"
#include "gpipe/torchscript/packed_values.h"
#include "gpipe/torchscript/script_error.h"

namespace gpipe::detail {
namespace {

using c10::IValue;

// Of the first tensor.
at::Device device_of(const std::vector<IValue>& values) {
  for (const IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) return value.toTensor().device();
  }
  return at::kCPU;
}

// What a branch that has returned early leaves behind is no tensor, and nothing reads it.
at::Tensor tensor_of(IValue value) { return value.isTensor() ? std::move(value).toTensor() : at::Tensor(); }

void add_tensors(const IValue& value, Tensors& tensors) {
  if (value.isNone()) {
    tensors.emplace_back();
  } else if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) add_tensors(element, tensors);
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) add_tensors(item.value(), tensors);
  } else {
    for (const IValue& element : value.toListRef()) add_tensors(element, tensors);
  }
}

}  // namespace

ScriptLayer::ScriptLayer(std::shared_ptr<const LayerProgram> program, const std::map<std::string, bool>& training)
    : torch::nn::Module(program->name), program_(std::move(program)) {
  for (const BatchNormSlots& norm : program_->deferred_norms) add_norm(norm);
  for (const AttributeSlot& slot : program_->slots) bind(slot);
  for (const AttributeSlot& slot : program_->unused) bind(slot);
  slots_.resize(program_->slots.size());
  set_modes(training);
}

torch::nn::Module& ScriptLayer::scope(const std::string& path) {
  torch::nn::Module* module = this;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, dot - begin);
    const auto children = module->named_children();
    const auto* const known = children.find(name);
    module = known != nullptr ? known->get()
                              : module->register_module(name, std::make_shared<torch::nn::Module>(name)).get();
    begin = dot + 1;
  }
  return *module;
}

at::Tensor ScriptLayer::own(const AttributeSlot& slot) {
  const auto [known, is_new] = own_.try_emplace(slot.name(), slot.tensor);
  // What is built for the Meta device is moved there in place, and the original must stay where it is.
  if (is_new && slot.tensor.defined() && (slot.is_tied_user || NoInitScope::is_open())) {
    known->second = slot.tensor.detach().requires_grad_(slot.tensor.requires_grad());
  }
  return known->second;
}

void ScriptLayer::add_norm(const BatchNormSlots& slots) {
  if (norms_.count(slots.scope) != 0) return;
  const auto own_or_none = [this](const std::optional<AttributeSlot>& slot) {
    return slot ? own(*slot) : at::Tensor();
  };
  ScriptBatchNorm::Tensors tensors;
  tensors.weight = own_or_none(slots.weight);
  tensors.bias = own_or_none(slots.bias);
  tensors.running_mean = own(slots.running_mean);
  tensors.running_var = own(slots.running_var);
  tensors.num_batches_tracked = own_or_none(slots.num_batches_tracked);
  if (!tensors.num_batches_tracked.defined()) tensors.num_batches_tracked = at::zeros({}, at::kLong);
  auto options =
      torch::nn::BatchNormOptions(tensors.running_mean.numel()).eps(slots.eps).affine(tensors.weight.defined());
  options.momentum(slots.momentum ? c10::optional<double>(*slots.momentum) : c10::nullopt);
  const auto norm = std::make_shared<ScriptBatchNorm>(tensors, options);
  const std::size_t dot = slots.scope.rfind('.');
  const bool is_nested = dot != std::string::npos;
  scope(is_nested ? slots.scope.substr(0, dot) : "")
      .register_module(is_nested ? slots.scope.substr(dot + 1) : slots.scope, norm);
  norms_[slots.scope] = norm;
}

void ScriptLayer::bind(const AttributeSlot& slot) {
  torch::nn::Module& module = scope(slot.scope);
  const at::Tensor tensor = own(slot);
  BoundSlot bound;
  bound.value = tensor;
  const bool is_weight = slot.kind == AttributeSlot::Kind::kParameter || slot.kind == AttributeSlot::Kind::kBuffer;
  if (is_weight && norms_.count(slot.scope) != 0) {
    slots_.push_back(std::move(bound));  // the batch norm has registered it
    return;
  }
  switch (slot.kind) {
    case AttributeSlot::Kind::kParameter:
      module.register_parameter(slot.key, tensor, tensor.requires_grad());
      break;
    case AttributeSlot::Kind::kBuffer:
      module.register_buffer(slot.key, tensor);
      break;
    case AttributeSlot::Kind::kConstant:
      bound.follows_inputs = true;
      break;
    case AttributeSlot::Kind::kTraining:
      bound.mode = &module;
      break;
  }
  slots_.push_back(std::move(bound));
}

void ScriptLayer::set_modes(const std::map<std::string, bool>& training) {
  // From the outside in: a module's mode becomes that of all within.
  const auto root = training.find("");
  train(root == training.end() || root->second);
  for (auto& module : named_modules("", /*include_self=*/false)) {
    const auto mode = training.find(module.key());
    if (mode != training.end()) module.value()->train(mode->second);
  }
}

Tensors ScriptLayer::forward(Tensors tensors) {
  if (program_->recorded_mode && *program_->recorded_mode != is_training()) {
    const char* const mode = is_training() ? "training" : "evaluation";
    throw InvalidArgument(fmt::format(
        "layer \"{}\" has the operations of {}, in which its module was recorded, and cannot run in {}; make "
        "a chain for {} with chain_of after {}() of the module: it shares the weights",
        program_->name, is_training() ? "evaluation" : "training", mode, mode, is_training() ? "train" : "eval"));
  }
  std::vector<IValue> stack = take(std::move(tensors));
  const at::Device device = device_for(stack);
  for (BoundSlot& slot : slots_) {
    if (slot.mode != nullptr) {
      stack.emplace_back(slot.mode->is_training());
      continue;
    }
    if (slot.follows_inputs && slot.value.toTensor().device() != device) slot.value = slot.value.toTensor().to(device);
    stack.push_back(slot.value);
  }
  run(stack);
  return program_->is_last ? give_result(stack[0]) : give(std::move(stack));
}

at::Device ScriptLayer::device_for(const std::vector<IValue>& values) const {
  for (const BoundSlot& slot : slots_) {
    if (slot.mode == nullptr && !slot.follows_inputs) return slot.value.toTensor().device();
  }
  return device_of(values);
}

std::vector<IValue> ScriptLayer::take(Tensors tensors) {
  const std::size_t num_direct = program_->num_direct_in;
  const bool is_packed = !program_->packed_in.empty();
  if (tensors.size() < num_direct || (!is_packed && tensors.size() > num_direct)) {
    throw InvalidArgument(fmt::format(
        "layer \"{}\" takes {} tensors{}, got {}", program_->name, num_direct,
        program_->inputs.empty() ? "" : fmt::format(" ({})", fmt::join(program_->inputs, ", ")), tensors.size()));
  }
  std::vector<IValue> values(tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(num_direct));
  if (is_packed) {
    std::vector<IValue> others = values;
    if (tensors.size() > num_direct + 1) others.emplace_back(tensors[num_direct + 1]);  // behind the skeleton
    std::vector<IValue> unpacked = unpack(tensors, num_direct, program_->packed_in, device_for(others));
    std::move(unpacked.begin(), unpacked.end(), std::back_inserter(values));
  }
  tensors.clear();
  for (const std::string& name : program_->popped) values.emplace_back(pop(name));
  return values;
}

Tensors ScriptLayer::give(std::vector<IValue> values) const {
  Tensors tensors;
  const auto packed_begin = values.begin() + static_cast<std::ptrdiff_t>(program_->num_direct_out);
  const auto packed_end = packed_begin + static_cast<std::ptrdiff_t>(program_->num_packed_out);
  for (auto value = values.begin(); value != packed_begin; ++value) tensors.push_back(tensor_of(std::move(*value)));
  if (program_->num_packed_out > 0) {
    Tensors packed = pack({packed_begin, packed_end});
    std::move(packed.begin(), packed.end(), std::back_inserter(tensors));
  }
  auto stashed = packed_end;
  for (const std::string& name : program_->stashed) stash(name, tensor_of(std::move(*stashed++)));
  return tensors;
}

Tensors ScriptLayer::give_result(const IValue& result) const {
  Tensors tensors;
  add_tensors(result, tensors);
  return tensors;
}

void ScriptLayer::run(std::vector<IValue>& stack) const {
  const BatchNormScope norms(norms_);
  take_last_refusal();
  try {
    torch::jit::InterpreterState(program_->code).run(stack);
  } catch (const std::exception& error) {
    // The interpreter has made another exception of what an operation has thrown.
    const std::optional<OutOfMemoryError> refusal = take_last_refusal();
    if (refusal && std::string_view(error.what()).find(refusal->what()) != std::string_view::npos) throw *refusal;
    throw InvalidArgument(script_error(error.what()));
  }
}

}  // namespace gpipe::detail
