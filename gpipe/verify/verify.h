// verify: proves on a model of the user's that stages, schedules and recompute change no bit of its training.
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/recording/verification.h"
#include "gpipe/schedule/recompute.h"

namespace gpipe {

struct VerifyBatch {
  Tensors inputs;
  Tensors targets;
};

struct VerifyOptions {
  using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;
  using OnProgress = std::function<void(const std::string& run, int number, int num_runs)>;

  // Steps of each run, all with the one batch.
  TORCH_ARG(int, num_steps) = 3;
  // All of these are combined; what needs more stages than there are layers is left out, and the report says so.
  TORCH_ARG(std::vector<int>, stages) = {1, 2, 4};
  TORCH_ARG(std::vector<std::string>, schedules) = {"gpipe", "1f1b", "zb-v"};
  TORCH_ARG(std::vector<Recompute>, recompute) = {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways};
  // Micro-batches, seed, loss reduction, replicated inputs and devices of all runs; its stages, schedule, recompute and
  // balance do not count.
  TORCH_ARG(PipelineOptions, pipeline) = PipelineOptions(1).num_micro_batches(4);
  // Empty: torch::optim::SGD with a learning rate of 0.05.
  TORCH_ARG(MakeOptimizer, optimizer) = {};
  // Called before each run.
  TORCH_ARG(OnProgress, on_progress) = {};
};

// Trains the chain some steps by a plain loop over its layers, without any pipeline, and then in pipelines; compares the
// bytes of what layers return, of losses, gradients, buffers and weights, and says what differs first, where it was
// made, and the likely cause. The runs end with the first that differs. Also found: a loss that is not the sum of its
// micro-batches', and weights that are not registered. Everything runs on threads of this process; `gpipe verify` runs
// a whole program, over processes too.
//
// Modules that are built already, as those of a torch::nn::Sequential, have the same parameters and buffers for every
// run, and at the end those of before. Throws what the plain loop throws.
Verification verify(const LayerChain& chain, const VerifyBatch& batch, const PipelineImpl::Loss& loss,
                    const VerifyOptions& options = {});

namespace detail {
Verification verify_made(const std::function<LayerChain()>& make_chain, const VerifyBatch& batch,
                         const PipelineImpl::Loss& loss, const VerifyOptions& options);
}

// `make_chain` gives a new, equal chain for every run.
template <typename Make, std::enable_if_t<std::negation_v<std::is_convertible<const Make&, LayerChain>>, int> = 0>
Verification verify(const Make& make_chain, const VerifyBatch& batch, const PipelineImpl::Loss& loss,
                    const VerifyOptions& options = {}) {
  return detail::verify_made(make_chain, batch, loss, options);
}

}  // namespace gpipe
