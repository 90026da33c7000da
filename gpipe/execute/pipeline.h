// Pipeline: the user's module. A chain of layers, cut into stages that run on threads of their own.
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/execute/executor.h"
#include "gpipe/execute/stage.h"
#include "gpipe/execute/workers.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/step_listener.h"
#include "gpipe/report/timeline.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

enum class LossReduction {
  kMean,  // the loss of a micro-batch is a mean over its samples; it counts n_i / N
  kSum,   // it is a sum over them
};

struct PipelineOptions {
  PipelineOptions(int num_stages) : num_stages_(num_stages) {}  // NOLINT(google-explicit-constructor)

  // Workers; a schedule with several chunks a worker has a multiple of it as stages.
  TORCH_ARG(int, num_stages);
  // The most a mini-batch is cut into; 0 means four times the workers.
  TORCH_ARG(int, num_micro_batches) = 0;
  // A name: "gpipe", "1f1b", "interleaved", "looped-bfs".
  TORCH_ARG(std::string, schedule) = "1f1b";
  // One of your own instead, for exactly its number of stages and micro-batches. It is proven before it runs.
  TORCH_ARG(std::optional<Schedule>, custom_schedule) = std::nullopt;
  TORCH_ARG(int, chunks_per_worker) = 0;
  TORCH_ARG(Recompute, recompute) = Recompute::kNever;
  // Layers per stage; empty: as equal as they can be.
  TORCH_ARG(std::vector<int>, balance) = {};
  TORCH_ARG(std::uint64_t, seed) = 0;
  // Intra-op threads of each worker.
  TORCH_ARG(int, threads_per_stage) = 1;
  TORCH_ARG(LossReduction, loss_reduction) = LossReduction::kMean;
  // Positions of inputs that go whole to every micro-batch.
  TORCH_ARG(std::vector<int>, replicated_inputs) = {};
};

struct StepResult {
  at::Tensor loss;    // of the mini-batch, detached
  Timeline timeline;  // measured
};

// Thread-compatible: one caller at a time.
class PipelineImpl : public torch::nn::Module {
 public:
  // Throws InvalidArgument for options that contradict the chain or each other, ScheduleError for a schedule that is wrong.
  PipelineImpl(const LayerChain& chain, const PipelineOptions& options);

  using Loss = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;

  // One mini-batch forward and backward. Gradients are added to the parameters', as loss.backward() does; zero_grad and the
  // optimizer step are the caller's. Throws ActionError for what a layer threw, and leaves the pipeline usable; gradients
  // may then hold a part of the step.
  StepResult train_step(const Tensors& inputs, const Tensors& targets, const Loss& loss);

  // For a loss that is called with one output and one target, such as torch::nn::CrossEntropyLoss().
  template <typename SimpleLoss>
  StepResult train_step(const at::Tensor& input, const at::Tensor& target, SimpleLoss loss) {
    return train_step(Tensors{input}, Tensors{target}, [&](const Tensors& outputs, const Tensors& targets) {
      return loss(outputs.front(), targets.front());
    });
  }

  // A drop-in module: autograd goes through it, and backward() of what follows is pipelined, too. Backward at most once.
  at::Tensor forward(const at::Tensor& input);
  Tensors forward(const Tensors& inputs);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  const std::vector<int>& layers_per_stage() const { return layers_per_stage_; }
  const PipelineOptions& options() const { return options_; }

 private:
  friend class StepInFlight;

  // A proven schedule with its live capacities.
  struct Proven {
    Schedule schedule;
    std::vector<int> capacities;
  };

  const Proven& proven(int num_micro_batches, bool with_grad);

  const PipelineOptions options_;
  std::vector<StageLayer> layers_;
  std::vector<int> layers_per_stage_;
  std::map<std::tuple<int, bool, bool>, Proven> proven_;  // by micro-batches, with gradient, in training
  std::vector<StepListener*> listeners_;                  // among the layers' modules
  std::int64_t step_ = 0;
  std::unique_ptr<Workers> workers_;
};
TORCH_MODULE(Pipeline);

}  // namespace gpipe
