// Pipeline: the user's module. A chain of layers, cut into stages that run on threads of their own, or in processes of their own.
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gpipe/execute/assembly.h"
#include "gpipe/execute/call_lock.h"
#include "gpipe/execute/ranks.h"
#include "gpipe/execute/step_call.h"
#include "gpipe/execute/tied_values.h"
#include "gpipe/execute/watchdog.h"
#include "gpipe/execute/workers.h"
#include "gpipe/model/changing_buffers.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/module_modes.h"
#include "gpipe/model/step_listener.h"
#include "gpipe/model/tie.h"
#include "gpipe/plan/plan.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"
#include "gpipe/report/timeline.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {

class GradientReducer;
struct ReducedParameter;

enum class LossReduction {
  kMean,  // the loss of a micro-batch is a mean over its samples; it counts n_i / N. Not if it has a weight: see LossValue
  kSum,  // it is a sum over them
};

struct PipelineOptions {
  PipelineOptions(int num_stages) : num_stages_(num_stages) {}  // NOLINT(google-explicit-constructor)
  // Everything the plan has chosen.
  PipelineOptions(const Plan& plan);  // NOLINT(google-explicit-constructor)

  // Workers; a schedule with several chunks a worker has a multiple of it as stages.
  TORCH_ARG(int, num_stages);
  // The most a mini-batch is cut into; 0 means four times the workers.
  TORCH_ARG(int, num_micro_batches) = 0;
  // A name: "gpipe", "1f1b", "interleaved", "looped-bfs".
  TORCH_ARG(std::string, schedule) = "1f1b";
  // One of your own instead, for exactly its number of stages and micro-batches. It is proven before it runs.
  TORCH_ARG(std::optional<Schedule>, custom_schedule) = std::nullopt;
  // Accepts a custom schedule that accumulates the gradients of a stage in another order than that of the
  // micro-batches, for which the last bits are not those of other schedules; see Certificate::canonical.
  TORCH_ARG(bool, allow_noncanonical) = false;
  TORCH_ARG(int, chunks_per_worker) = 0;
  // kAuto: the first batch is profiled, and layers, recompute and rematerialization are chosen for each stage so that the
  // step is the fastest within memory_limit_bytes; see `plan`.
  TORCH_ARG(Recompute, recompute) = Recompute::kNever;
  // One a stage; empty: `recompute` for all.
  TORCH_ARG(std::vector<Recompute>, recompute_by_stage) = {};
  // One a stage: layers, counted from the stage's first, that drop their activations and are run again in the backward; see
  // parse_rematerialization. Where a stage recomputes as well, this is how its recompute runs. In training only, as
  // recompute is. Needs balance, if there are several stages. Empty: none.
  TORCH_ARG(std::vector<Rematerialization>, rematerialization) = {};
  // Tensors of optimizer state a parameter, to leave room for if layers are split within a limit: 0 SGD, 1 momentum or RMSprop, 2 Adam.
  TORCH_ARG(int, optimizer_slots) = 2;
  // Layers per stage. Empty: the first batch is profiled, for which its first micro-batch is run some times, with the loss, and
  // the layers are split so that a step takes the least time and, if that can be, each stage stays within memory_limit_bytes.
  TORCH_ARG(std::vector<int>, balance) = {};
  // Stage s goes to devices[s % devices.size()]: several stages may share one. Empty: all stay where their layers are.
  // In a world of several ranks, those of this rank's stages have to be there, and other ranks may name others.
  TORCH_ARG(std::vector<torch::Device>, devices) = {};
  TORCH_ARG(std::uint64_t, seed) = 0;
  // Intra-op threads of each worker.
  TORCH_ARG(int, threads_per_stage) = 1;
  TORCH_ARG(LossReduction, loss_reduction) = LossReduction::kMean;
  // Positions of inputs that go whole to every micro-batch.
  TORCH_ARG(std::vector<int>, replicated_inputs) = {};
  // Refuses a loss that is not a number, or infinite, with NonFiniteLossError, and puts the gradients back as they were. This
  // costs a copy of the gradients a step.
  TORCH_ARG(bool, check_loss) = false;
  // Gives a step up, with StuckError, in which no worker gets on for this long; 0 = never.
  TORCH_ARG(double, watchdog_seconds) = 0;
  // Counts the bytes of tensors that each stage holds, for StepResult::memory; messages under way belong to no stage. This replaces libtorch's CPU allocator by one
  // that counts, for the whole process; it costs some nanoseconds an allocation. Parameters are counted if they are built
  // by the pipeline (LayerChain::add), or after the first pipeline that measures was made.
  TORCH_ARG(bool, measure_memory) = false;
  // Bytes of tensors that each stage may hold at once: parameters, gradients, activations, and the optimizer's state once it is
  // booked (Pipeline::book). More is refused with OutOfMemoryError; the pipeline stays usable. 0 = no limit. Implies
  // measure_memory. Where a worker has several stages, each may hold as much; a plan's limit is the worker's.
  TORCH_ARG(std::int64_t, memory_limit_bytes) = 0;
  // The processes that run the workers, one each; a world of one: threads of this process run them. Null: those that the
  // environment tells of, see read_world.
  TORCH_ARG(std::shared_ptr<Peers>, peers) = nullptr;
  // Called by the watchdog at once; the error itself waits for the layers at work to return.
  TORCH_ARG(std::function<void(const StuckError&)>, on_stuck) = {};

 public:
  // Adds a text that all ranks have to give alike, such as "learning rate 0.1": anything of the program that would make
  // ranks train different things. They are compared when the pipeline is made, in the order in which they were added;
  // where they differ, every rank throws FingerprintError with both texts.
  PipelineOptions& agree_on(std::string text) {
    agreed_texts_.push_back(std::move(text));
    return *this;
  }
  const std::vector<std::string>& agreed_texts() const { return agreed_texts_; }

 private:
  std::vector<std::string> agreed_texts_;
};

// What a loss function returns: a scalar to go backward from and, if it likes, its weight and values to report by name.
//
// With a weight, the loss of the mini-batch is the sum of the scalars, over all micro-batches and all replicas, divided
// by the sum of the weights, and so are the gradients: see Note [Gradients of a weighted loss]. So a mean over anything
// else than samples is exact, such as that over the tokens that are not padding: the scalar is then a sum over them,
// and the weight their number. LossReduction has no say then. A weight is a constant, to which no gradient flows: one
// number that is finite and not negative. If the whole mini-batch weighs 0, the loss is 0 and no gradient is added. The
// function gives a weight for all micro-batches or for none. If a step with weights fails, all gradients are as before
// it.
struct LossValue {
  LossValue(at::Tensor value) : loss(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  LossValue(at::Tensor value, std::map<std::string, at::Tensor> reported)
      : loss(std::move(value)), metrics(std::move(reported)) {}
  // `weight` is a number, or a tensor of one element.
  template <typename Weight,
            typename = std::enable_if_t<std::is_arithmetic_v<Weight> || std::is_same_v<Weight, at::Tensor>>>
  LossValue(at::Tensor sum, Weight weight_of_sum, std::map<std::string, at::Tensor> reported = {})
      : loss(std::move(sum)), weight(as_tensor(std::move(weight_of_sum))), metrics(std::move(reported)) {}

  at::Tensor loss;
  std::optional<at::Tensor> weight;
  // Scalars are put together as losses are, see LossReduction; if there are weights, they are means by these, in which
  // a micro-batch of weight 0 does not count. Other tensors are put together row by row.
  std::map<std::string, at::Tensor> metrics;

 private:
  static at::Tensor as_tensor(at::Tensor weight) { return weight; }
  static at::Tensor as_tensor(double weight);
};

class NonFiniteLossError : public Error {
 public:
  using Error::Error;
};

// Bytes of tensors that a stage has allocated or taken over: parameters, gradients, activations.
struct StageMemory {
  std::int64_t live_bytes = 0;  // at the end of the step
  std::int64_t peak_bytes = 0;  // the most during it
  // What the peak is made of.
  std::int64_t parameter_bytes = 0;  // with buffers; also of those that are not counted, see measure_memory
  std::int64_t gradient_bytes = 0;
  std::int64_t optimizer_bytes = 0;  // that were booked before the step
  std::int64_t input_bytes = 0;      // the most that was held, for a recompute, of what came from other stages
  // The rest: activations and whatever else the layers needed at the same time; with recompute, of one micro-batch.
  std::int64_t working_bytes() const {
    return peak_bytes - parameter_bytes - gradient_bytes - optimizer_bytes - input_bytes;
  }
};

struct StepResult {
  at::Tensor loss;                            // of the mini-batch, detached
  std::optional<double> weight;               // of the mini-batch; none if the loss function gave none
  std::map<std::string, at::Tensor> metrics;  // what the loss function reported, detached
  Timeline timeline;                          // measured
  std::vector<StageMemory> memory;            // by stage; empty unless PipelineOptions::measure_memory
};

// What a step runs of its schedule.
enum class StepMode {
  kForwardOnly,
  kTogether,  // forwards and backwards in the schedule's order
  kApart,     // all forwards; the backwards when the caller comes back with gradients
};

// A mini-batch, ready to run on all ranks.
struct ReadyBatch {
  std::vector<MicroBatch> micro_batches;  // their tensors only where the first stage is
  std::vector<bool> requires_grad;        // of the inputs
  bool needs_grad = true;
  std::vector<int> idle;  // assemblies that all ranks could use
  // Of this replica's part of the mini-batch of all replicas; without replicas it is all there is.
  int first_micro_batch = 0;
  std::int64_t first_sample = 0;
  std::int64_t num_samples = 0;  // of all replicas
};

// Note [One stage a process]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// In a world of several ranks each runs one worker of the schedule, and has the layers of that worker's stages only:
// parameters(), gradients and buffers are those. Every rank makes the same calls in the same order. Inputs may be undefined
// where the first stage is not, targets where the last one is not. Every rank gets the loss, the metrics, the outputs and the
// timeline of all workers.
//
// In a world of replicas x stages each replica is such a pipeline, and gets its own part of the mini-batch: its rows come after
// those of the replicas before it. The step is that of the whole mini-batch: the loss, the metrics, the gradients and the
// statistics of deferred batch norms are over all replicas, and have the same bits on each; outputs and timeline are those
// of the replica. The replicas start with the values of the first.
//
// Each call begins with an exchange: ranks that are about to do different things all throw FingerprintError, and InvalidArgument
// if one of them cannot do what it was asked to; nothing has run then, and the pipeline stays usable. Any other error ends the
// rank's part in the world: it throws that error, the other ranks throw PeerError, which names it, and so does every later call.
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
        "and not of any other module; put its layers into one of these, for example "
        "gpipe::LayerChain().add(\"layer\", module)");
  }
  // Parameters that were tied are separate again, with the values they had in common. In a world of several, waits until all
  // ranks have come here, unless an error is on its way. In a forked process, leaves alone what only its parent can
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

  // One mini-batch forward and backward. Gradients are added to the parameters', and to those of inputs that require one, as
  // loss.backward() does; zero_grad and the optimizer step are the caller's. Throws ActionError for what a layer threw, and
  // leaves the pipeline usable; gradients may then hold a part of the step, unless the loss has weights.
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

  // A pipeline is placed when it is made: throws InvalidArgument, unless nothing would move. Casts are fine.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

  int num_layers() const { return static_cast<int>(layers_.size()); }
  // What the names of its parameters and buffers begin with.
  const std::string& layer_name(int layer) const { return layers_[layer].name; }
  // Empty before the first step if it is found by profiling.
  const std::vector<int>& layers_per_stage() const { return layers_per_stage_; }
  // Empty if it is the same for all, and before the first step if it is chosen.
  const std::vector<Recompute>& recompute_by_stage() const { return recompute_by_stage_; }
  // By stage; empty if there is none, and before the first step if it is chosen.
  const std::vector<Rematerialization>& rematerialization() const { return rematerialization_; }
  // Of the first batch; without layers if it was not profiled.
  const Profile& profile() const { return profile_; }
  // Of the last step, forward or backward that went well: what loss.backward() cannot return.
  const Timeline& last_timeline() const { return last_timeline_; }
  // Books the optimizer's state on the stages of its parameters; call it after the optimizer's first step. Throws
  // OutOfMemoryError if a stage has no room for it; then nothing of it is booked. Does nothing unless memory is measured.
  void book(torch::optim::Optimizer& optimizer);
  // Bytes now, and the most since the last step began, of stages in this process; see PipelineOptions::measure_memory.
  std::vector<StageMemory> memory() const;
  const PipelineOptions& options() const { return options_; }
  // The processes that run its stages; null: all are threads of this one.
  const std::shared_ptr<Ranks>& ranks() const { return ranks_; }
  // Whether it is, or may become, a layer of this process: all are before there are stages.
  bool runs_layer(int layer) const;
  // Steps in training so far: a part of what random streams are a function of. Who goes on with a training sets it.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

  // See the function below.
  double clip_grad_norm(double max_norm, double norm_type);

 private:
  friend class StepInFlight;

  // A schedule, and assemblies that run it and are not in use.
  struct Pool {
    Schedule schedule;
    std::vector<std::unique_ptr<Assembly>> idle;
  };

  // Gives the shapes of the parameters, if all of them are here.
  Fingerprint make(const LayerChain& chain);
  // Of everything else that all ranks must have in common.
  Fingerprint fingerprint(const LayerChain& chain) const;
  // Whether they are in this process.
  bool runs_stage(int stage) const;
  bool runs_first() const { return runs_stage(0); }
  bool runs_last() const { return runs_stage(static_cast<int>(worker_of_stage_.size()) - 1); }
  std::vector<ChainLayer> built_layers() const;
  void register_layers();
  void keep_own_layers();
  // Completes the call by `prepare`, and finds out whether all ranks do the same. What the ranks give with it comes back by
  // rank in `given`. By replica.
  std::vector<StepCall> agree(StepCall call, const std::function<void(StepCall&)>& prepare,
                              std::vector<detail::WireRecord>* given = nullptr);
  StepCall make_call(const std::string& name) const;
  ReadyBatch ready(StepCall call, const Tensors& inputs, const Tensors* targets,
                   std::vector<MicroBatch>* target_batches);
  // Whose gradients the replicas add up.
  std::vector<ReducedParameter> reduced_parameters() const;
  // Once this rank's layers are known.
  void copy_first_replica();
  // What not all ranks throw from ends this one's part in the world.
  template <typename Work>
  auto together(const Work& work) -> decltype(work()) {
    if (ranks_ == nullptr) return work();
    try {
      return work();
    } catch (...) {
      ranks_->fail(std::current_exception());
    }
  }
  int rank_of_stage(int stage) const { return ranks_->rank_of_worker(worker_of_stage_[stage]); }

  // Throws InvalidArgument if there are several.
  static const at::Tensor& only(const Tensors& outputs);
  // Runs the layers one after the other on the first worker; throws as a step does.
  // With their seconds and with the loss, if there is one that goes well.
  Profile measure_layers(const MicroBatch& sample, const StageLoss& loss);
  Profile look_at_layers(const MicroBatch& sample, bool with_seconds, const StageLoss& loss = {});
  void trace_skips(const MicroBatch& sample);
  void set_skips(bool training, std::vector<SkipProfile> skips);
  void split_by_profile(const MicroBatch& sample, const StageLoss& loss);
  void choose_by_profile();
  Schedule make_schedule(int num_micro_batches, StepMode mode) const;
  Pool& pool(const std::vector<MicroBatch>& micro_batches, StepMode mode, const StageLoss& loss);
  std::unique_ptr<Assembly> take(Pool& pool, const std::vector<int>& idle);
  // Stage 0 before there are stages.
  int stage_of(int layer) const;
  void make_accounts();
  void book_layers();
  void place_layers();
  void check_device(torch::Device device) const;

  const PipelineOptions options_;
  CallLock calls_;
  std::shared_ptr<Ranks> ranks_;  // null: all workers are threads of this process
  std::vector<int> worker_of_stage_;
  std::vector<ChainLayer> layers_;  // all of them; those that other ranks run are not built
  ModuleModes modes_{{}};
  ChangingBuffers buffers_{{}};
  std::vector<Tie> ties_;
  std::unique_ptr<TiedValues> tied_values_;               // once there are stages, if there are other ranks
  std::unique_ptr<GradientReducer> reducer_;              // null unless there are replicas
  std::vector<std::shared_ptr<MemoryAccount>> accounts_;  // by stage; empty unless memory is measured
  std::vector<Tensors> stage_parameters_;                 // by stage, if memory is measured
  std::vector<Tensors> stage_buffers_;
  std::vector<std::int64_t> optimizer_bytes_;          // by stage, booked
  std::vector<std::int64_t> input_bytes_;              // by stage, of the last step
  std::vector<std::shared_ptr<StageStream>> streams_;  // by stage; empty unless there are devices
  std::vector<int> layers_per_stage_;
  std::vector<Recompute> recompute_by_stage_;         // empty: the same for all
  std::vector<Rematerialization> rematerialization_;  // by stage; empty: none
  Profile profile_;
  std::map<bool, std::vector<SkipProfile>> skips_;         // by whether in training
  std::map<std::tuple<int, StepMode, bool>, Pool> pools_;  // by micro-batches, mode, in training
  int num_assemblies_ = 0;
  std::vector<StepListener*> listeners_;  // among the layers' modules
  std::int64_t step_ = 0;
  Timeline last_timeline_;
  std::unique_ptr<Workers> workers_;
};
TORCH_MODULE(Pipeline);

// Scales the gradients of all stages so that their norm is at most `max_norm`; returns the norm before. The same for every
// number of stages. All ranks call it.
double clip_grad_norm_(const Pipeline& pipeline, double max_norm, double norm_type = 2);

}  // namespace gpipe
