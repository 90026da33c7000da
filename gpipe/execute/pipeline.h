// Pipeline: the user's module. A chain of layers, cut into stages that run on threads of their own, or in processes of
// their own.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/execute/values/step_result.h"
#include "gpipe/interpret/action_error.h"
#include "gpipe/launch/world.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"
#include "gpipe/report/timeline.h"
#include "gpipe/schedule/recompute.h"

namespace gpipe {

namespace detail {
class Engine;
class ProgramRecording;
}  // namespace detail

// Note [One stage a process]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// In a world of several ranks each runs one worker of the schedule, and has the layers of that worker's stages only:
// parameters(), gradients and buffers are those. Every rank makes the same calls in the same order. Inputs may be
// undefined where the first stage is not, targets where the last one is not. Every rank gets the loss, the metrics, the
// outputs and the timeline of all workers.
//
// In a world of replicas x stages each replica is such a pipeline, and gets its own part of the mini-batch: its rows
// come after those of the replicas before it. The step is that of the whole mini-batch: the loss, the metrics, the
// gradients and the statistics of deferred batch norms are over all replicas, and have the same bits on each; outputs
// and timeline are those of the replica. The replicas start with the values of the first.
//
// Each call begins with an exchange: ranks that are about to do different things all throw FingerprintError, and
// InvalidArgument if one of them cannot do what it was asked to; nothing has run then, and the pipeline stays usable.
// Any other error ends the rank's part in the world: it throws that error, the other ranks throw PeerError, which names
// it, and so does every later call.
//
// Thread-compatible: one caller at a time. train_step, forward, its backward, book and clip_grad_norm_ throw CallError
// while another of them runs, as when a loss calls its own pipeline, and in a process that was forked from the one that
// made the pipeline; there it can only be read and destroyed.
class PipelineImpl : public torch::nn::Module {
 public:
  // Throws InvalidArgument for options that contradict the chain or each other and for a device that is not there,
  // ScheduleError for a schedule that is wrong; in a world of several, FingerprintError for ranks with different models
  // or options, and as Peers does.
  PipelineImpl(const LayerChain& chain, const PipelineOptions& options);
  template <typename Model, std::enable_if_t<!std::is_convertible_v<const Model&, LayerChain>, int> = 0>
  PipelineImpl(const Model& /*model*/, const PipelineOptions& options) : PipelineImpl(LayerChain(), options) {
    static_assert(
        detail::kNever<Model>,
        "gpipe::Pipeline is made of a torch::nn::Sequential or a gpipe::LayerChain, whose layers it can split, "
        "and not of any other module; cut it into layers with gpipe::chain_of(module, sample), or put its layers into "
        "one of these, for example gpipe::LayerChain().add(\"layer\", module)");
  }
  // Parameters that were tied are separate again, with the values they had in common. In a world of several, leaves as
  // `leave` does, unless an error is on its way. In a forked process, leaves alone what only its parent can
  // end.
  ~PipelineImpl() override;
  PipelineImpl(const PipelineImpl&) = delete;
  PipelineImpl& operator=(const PipelineImpl&) = delete;

  using Loss = std::function<LossValue(const Tensors& outputs, const Tensors& targets)>;

  // What train_step takes.
  template <typename T>
  static constexpr bool kIsTensor = std::is_convertible_v<const T&, const at::Tensor&>;
  template <typename T>
  static constexpr bool kIsTensors = kIsTensor<T> || std::is_convertible_v<const T&, const Tensors&>;
  template <typename Input, typename Target, typename AnyLoss>
  static constexpr bool kIsTrainStep =
      std::disjunction_v<std::conjunction<std::bool_constant<kIsTensor<Input> && kIsTensor<Target>>,
                                          std::is_invocable<AnyLoss&, const at::Tensor&, const at::Tensor&>>,
                         std::conjunction<std::bool_constant<kIsTensors<Input> && kIsTensors<Target> &&
                                                             !kIsTensor<Input> && !kIsTensor<Target>>,
                                          std::is_convertible<AnyLoss, Loss>>>;

  // One mini-batch forward and backward. Gradients are added to the parameters', and to those of inputs that require
  // one, as loss.backward() does; zero_grad and the optimizer step are the caller's. Throws ActionError for what a
  // layer threw, and leaves the pipeline usable; gradients may then hold a part of the step, unless the loss has
  // weights.
  //
  // If the layers use skips, they are run on a micro-batch for a trial before the first step and before the first in
  // evaluation: throws SkipError with all that is wrong with those.
  StepResult train_step(const Tensors& inputs, const Tensors& targets, const Loss& loss);

  // For a loss that is called with one output and one target, such as torch::nn::CrossEntropyLoss().
  template <typename SimpleLoss,
            typename = std::enable_if_t<std::is_invocable_v<SimpleLoss&, const at::Tensor&, const at::Tensor&>>>
  StepResult train_step(const at::Tensor& input, const at::Tensor& target, SimpleLoss loss) {
    static_assert(
        std::is_constructible_v<LossValue, std::invoke_result_t<SimpleLoss&, const at::Tensor&, const at::Tensor&>>,
        "the loss function of train_step returns a scalar torch::Tensor, or a gpipe::LossValue; leave out item()");
    return train_step(Tensors{input}, Tensors{target}, [&](const Tensors& outputs, const Tensors& targets) {
      return LossValue(loss(only(outputs), targets.front()));
    });
  }

  // Any other call does not compile, and the compiler says why.
  template <typename Input, typename Target, typename AnyLoss,
            std::enable_if_t<!kIsTrainStep<Input, Target, AnyLoss>, int> = 0>
  StepResult train_step(const Input& /*input*/, const Target& /*target*/, const AnyLoss& /*loss*/) {
    static_assert(kIsTensors<Input>, "the input of train_step is a torch::Tensor, or a std::vector of them");
    static_assert(
        kIsTensors<Target>,
        "the target of train_step is a torch::Tensor, or a std::vector of them; make one of other values with "
        "torch::tensor");
    static_assert(!kIsTensors<Input> || !kIsTensors<Target> || kIsTensor<Input> == kIsTensor<Target>,
                  "the input and the target of train_step are both a torch::Tensor, or both a std::vector of them");
    static_assert(!kIsTensor<Input> || !kIsTensor<Target>,
                  "the loss function of train_step is called with the output and the target, two torch::Tensor; a loss "
                  "that needs no target takes and ignores it: [](const torch::Tensor& output, const torch::Tensor&)");
    static_assert(kIsTensor<Input> || kIsTensor<Target> || !kIsTensors<Input> || !kIsTensors<Target>,
                  "the loss function of train_step is called with all outputs and all targets, two "
                  "std::vector<torch::Tensor>, and returns a scalar torch::Tensor or a gpipe::LossValue");
    return {};
  }

  // A drop-in module: autograd goes through it, and backward() of what follows is pipelined, too. Backward at most
  // once. There is one forward, as in libtorch's own modules: so pipeline(input) compiles, and a pipeline can be in a
  // torch::nn::Sequential or a torch::nn::AnyModule.
  at::Tensor forward(const at::Tensor& input);
  // The same for a model of several inputs or outputs.
  Tensors forward_tensors(const Tensors& inputs);

  // A pipeline has threads, or processes, of its own: throws InvalidArgument, which says what to do instead.
  std::shared_ptr<torch::nn::Module> clone(const c10::optional<torch::Device>& device = c10::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;
  // Reaches the modules of parts, too (see LayerChain::add_part).
  void train(bool on = true) override;

  // A pipeline is placed when it is made: throws InvalidArgument, unless nothing would move. Casts are fine.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  int num_layers() const;
  // What the names of its parameters and buffers begin with, unless it is a part.
  const std::string& layer_name(int layer) const;
  // Empty before the first step if it is found by profiling.
  const std::vector<int>& layers_per_stage() const;
  // Empty if it is the same for all, and before the first step if it is chosen.
  const std::vector<Recompute>& recompute_by_stage() const;
  // By stage; empty if there is none, and before the first step if it is chosen.
  const std::vector<Rematerialization>& rematerialization() const;
  // Of the first batch; without layers if it was not profiled.
  const Profile& profile() const;
  // Of the last step, forward or backward that went well: what loss.backward() cannot return.
  const Timeline& last_timeline() const;
  // Books the optimizer's state on the stages of its parameters; call it after the optimizer's first step. Throws
  // OutOfMemoryError if a stage has no room for it; then nothing of it is booked. Does nothing unless memory is
  // measured.
  void book(torch::optim::Optimizer& optimizer);
  // Bytes now, and the most since the last step began, of stages in this process; see PipelineOptions::measure_memory.
  std::vector<StageMemory> memory() const;
  const PipelineOptions& options() const { return options_; }
  // The processes that run its stages, and this one's place among them; a world of one: all are threads of this one.
  const World& world() const;
  // Whether it is, or may become, a layer of this process: all are before there are stages.
  bool runs_layer(int layer) const;
  // Steps in training so far: a part of what random streams are a function of. Who goes on with a training sets it.
  std::int64_t step() const;
  void set_step(std::int64_t step);

  // Waits until all ranks have come here, so that none leaves while others still talk to it: the destructor's wait, at
  // a place of the program's choice. The pipeline can only be read and destroyed then. Throws PeerError, which names
  // the rank that did not come within the timeout; PipelineOptions::on_late_rank tells of it before.
  void leave();

  // For functions of this library. Thread-compatible.
  detail::Engine& engine() const { return *engine_; }

 private:
  // As `recording` wants it.
  PipelineImpl(const LayerChain& chain, const PipelineOptions& options, const detail::ProgramRecording& recording);
  // Throws InvalidArgument if there are several.
  static const at::Tensor& only(const Tensors& outputs);
  void check_device(torch::Device device) const;

  const PipelineOptions options_;
  std::unique_ptr<detail::Engine> engine_;
};
TORCH_MODULE(Pipeline);

// Scales the gradients of all stages so that their norm is at most `max_norm`; returns the norm before. The same for
// every number of stages. All ranks call it.
double clip_grad_norm_(const Pipeline& pipeline, double max_norm, double norm_type = 2);

}  // namespace gpipe
