// Deferred batch norm: normalises by micro-batch, updates its running statistics once per mini-batch.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <vector>

#include "gpipe/model/step_listener.h"

namespace gpipe::detail {

// What the forwards of a step saw, as numbers. A row a forward: its micro-batch, its count of values of each channel, the
// channels' means, their unbiased variances. Doubles hold all of them exactly.
class PendingStatistics {
 public:
  struct Merged {
    double count = 0;
    std::vector<double> mean;
    std::vector<double> m2;  // sums of squared deviations
  };

  bool empty() const { return rows_.empty() && unread_.empty(); }
  void clear();
  // Does not wait for a device.
  void add(int micro_batch, std::int64_t count, at::Tensor mean, at::Tensor variance);
  // Undefined if there are none.
  at::Tensor rows(std::int64_t num_channels) const;
  void add_rows(const at::Tensor& rows);
  // In the order of micro-batches; of one micro-batch, in that of its calls.
  Merged merge(std::size_t num_channels);

 private:
  struct OnDevice {
    int micro_batch;
    std::int64_t count;
    at::Tensor mean;
    at::Tensor variance;
  };

  // Moves what is on a device to the rows, waiting once.
  void read();

  std::vector<double> rows_;  // one after the other; its memory stays from step to step
  std::vector<OnDevice> unread_;
};

}  // namespace gpipe::detail

namespace gpipe::nn {

// torch::nn::BatchNorm with the same options, parameters, buffers, names and outputs. It differs inside a layer run
// (see LayerScope) in training: the running statistics stay as they are until end_step(), or a micro-batch of another
// step, and then move once, to the statistics of all micro-batches, of all replicas, merged in ascending order. A
// recompute counts nothing.
//
// As in torch, a micro-batch with one value per channel cannot be normalised and throws.
//
// Confined to its worker while a step runs; it must not be shared by stages on different workers.
template <int D, typename Original, typename Derived>
class DeferredBatchNormImplBase : public torch::nn::Cloneable<Derived>, public StepListener {
 public:
  explicit DeferredBatchNormImplBase(const torch::nn::BatchNormOptions& options_);
  // Shares the original's parameters and buffers and takes over its mode.
  explicit DeferredBatchNormImplBase(const Original& original);

  void reset() override;
  // Throws InvalidArgument for an input of the wrong number of dimensions.
  at::Tensor forward(const at::Tensor& input);
  at::Tensor kept() const override;
  void keep(const at::Tensor& of_another) override;
  void end_step() override;
  void abandon_step() override;
  void pretty_print(std::ostream& stream) const override;

  torch::nn::BatchNormOptions options;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;

 private:
  at::Tensor normalise(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& variance, double momentum);
  double count_batch();

  std::int64_t step_ = 0;  // of what is pending
  detail::PendingStatistics pending_;
};

class DeferredBatchNorm1dImpl
    : public DeferredBatchNormImplBase<1, torch::nn::BatchNorm1dImpl, DeferredBatchNorm1dImpl> {
 public:
  using DeferredBatchNormImplBase::DeferredBatchNormImplBase;
};
TORCH_MODULE(DeferredBatchNorm1d);

class DeferredBatchNorm2dImpl
    : public DeferredBatchNormImplBase<2, torch::nn::BatchNorm2dImpl, DeferredBatchNorm2dImpl> {
 public:
  using DeferredBatchNormImplBase::DeferredBatchNormImplBase;
};
TORCH_MODULE(DeferredBatchNorm2d);

class DeferredBatchNorm3dImpl
    : public DeferredBatchNormImplBase<3, torch::nn::BatchNorm3dImpl, DeferredBatchNorm3dImpl> {
 public:
  using DeferredBatchNormImplBase::DeferredBatchNormImplBase;
};
TORCH_MODULE(DeferredBatchNorm3d);

// The model with every BatchNorm1d, 2d and 3d in its deferred form: a new Sequential with the same names, which shares
// all parameters, buffers and other layers with `model`. A batch norm within a torch::nn::Sequential that a layer owns
// is replaced there, in that layer. One that a layer of another type owns is out of reach, because the layer's member
// has torch's type: throws InvalidArgument that names all of them, and nothing has changed; write DeferredBatchNorm
// there.
torch::nn::Sequential convert_batch_norm(torch::nn::Sequential model);

}  // namespace gpipe::nn
