// Script batch norm: a batch norm of a TorchScript module in its deferred form.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/options/batchnorm.h>

#include <map>
#include <memory>
#include <string>

#include "gpipe/model/deferred_batch_norm.h"
#include "gpipe/model/step_listener.h"

namespace gpipe::detail {

// Takes the place of the original submodule: it has its parameters and buffers under its names, and does what
// nn::DeferredBatchNorm does, for inputs of 2 to 5 dimensions.
//
// Confined as nn::DeferredBatchNorm is.
class ScriptBatchNorm : public torch::nn::Module, public StepListener {
 public:
  struct Tensors {
    at::Tensor weight;  // undefined, as the bias may be, if there is none
    at::Tensor bias;
    at::Tensor running_mean;
    at::Tensor running_var;
    at::Tensor num_batches_tracked;
  };

  ScriptBatchNorm(const Tensors& tensors, const torch::nn::BatchNormOptions& options);

  // Throws as nn::DeferredBatchNorm does.
  at::Tensor forward(const at::Tensor& input);
  at::Tensor kept() const override;
  void keep(const at::Tensor& of_another) override;
  void end_step() override;
  void abandon_step() override;

 private:
  template <typename Norm>
  at::Tensor use(Norm& norm, const at::Tensor& input);

  // They share all tensors; one is used, as the number of dimensions wants it.
  std::unique_ptr<nn::DeferredBatchNorm1dImpl> of_rows_;
  std::unique_ptr<nn::DeferredBatchNorm2dImpl> of_images_;
  std::unique_ptr<nn::DeferredBatchNorm3dImpl> of_volumes_;
  StepListener* used_ = nullptr;
};

// While it lives, the operations for batch norms that this thread runs are those of these modules, by their names.
class BatchNormScope {
 public:
  using Norms = std::map<std::string, std::shared_ptr<ScriptBatchNorm>>;
  // REQUIRES: `norms` outlive it.
  explicit BatchNormScope(const Norms& norms);
  ~BatchNormScope();
  BatchNormScope(const BatchNormScope&) = delete;
  BatchNormScope& operator=(const BatchNormScope&) = delete;

  // Throws Error if there is none of this name.
  static ScriptBatchNorm& find(const std::string& name);

 private:
  const Norms* const outer_;
};

}  // namespace gpipe::detail
