#include "gpipe/torchscript/script_batch_norm.h"

#include <fmt/format.h>
#include <torch/nn/modules/batchnorm.h>

#include <utility>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

thread_local const BatchNormScope::Norms* current = nullptr;

template <typename Deferred, typename Original>
std::unique_ptr<Deferred> share(const ScriptBatchNorm::Tensors& tensors, const torch::nn::BatchNormOptions& options) {
  Original original(torch::nn::BatchNormOptions(1).eps(options.eps()).momentum(options.momentum()));
  original.options = options;
  original.weight = tensors.weight;
  original.bias = tensors.bias;
  original.running_mean = tensors.running_mean;
  original.running_var = tensors.running_var;
  original.num_batches_tracked = tensors.num_batches_tracked;
  return std::make_unique<Deferred>(original);
}

}  // namespace

ScriptBatchNorm::ScriptBatchNorm(const Tensors& tensors, const torch::nn::BatchNormOptions& options)
    : of_rows_(share<nn::DeferredBatchNorm1dImpl, torch::nn::BatchNorm1dImpl>(tensors, options)),
      of_images_(share<nn::DeferredBatchNorm2dImpl, torch::nn::BatchNorm2dImpl>(tensors, options)),
      of_volumes_(share<nn::DeferredBatchNorm3dImpl, torch::nn::BatchNorm3dImpl>(tensors, options)) {
  for (const auto& [name, tensor] : {std::pair("weight", tensors.weight), std::pair("bias", tensors.bias)}) {
    if (tensor.defined()) register_parameter(name, tensor, tensor.requires_grad());
  }
  register_buffer("running_mean", tensors.running_mean);
  register_buffer("running_var", tensors.running_var);
  register_buffer("num_batches_tracked", tensors.num_batches_tracked);
}

template <typename Norm>
at::Tensor ScriptBatchNorm::use(Norm& norm, const at::Tensor& input) {
  used_ = &norm;
  norm.train(is_training());
  return norm.forward(input);
}

at::Tensor ScriptBatchNorm::forward(const at::Tensor& input) {
  if (input.dim() <= 3) return use(*of_rows_, input);
  return input.dim() == 4 ? use(*of_images_, input) : use(*of_volumes_, input);
}

at::Tensor ScriptBatchNorm::kept() const { return used_ != nullptr ? used_->kept() : at::Tensor(); }

void ScriptBatchNorm::keep(const at::Tensor& of_another) {
  if (used_ != nullptr) used_->keep(of_another);
}

void ScriptBatchNorm::end_step() {
  if (used_ != nullptr) used_->end_step();
}

void ScriptBatchNorm::abandon_step() {
  if (used_ != nullptr) used_->abandon_step();
}

BatchNormScope::BatchNormScope(const Norms& norms) : outer_(std::exchange(current, &norms)) {}

BatchNormScope::~BatchNormScope() { current = outer_; }

ScriptBatchNorm& BatchNormScope::find(const std::string& name) {
  const auto found = current != nullptr ? current->find(name) : Norms::const_iterator();
  if (current == nullptr || found == current->end()) {
    throw Error(fmt::format("no layer at work has the batch norm \"{}\"; please report it", name));
  }
  return *found->second;
}

}  // namespace gpipe::detail
