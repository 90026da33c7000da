// Engine: the five parts of a pipeline, and what it takes for a step to run on them. See docs/architecture.md.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/execute/cut/cut.h"
#include "gpipe/execute/group/group.h"
#include "gpipe/execute/model/model.h"
#include "gpipe/execute/record/run_recorder.h"
#include "gpipe/execute/runner/caller_state.h"
#include "gpipe/execute/runner/runner.h"
#include "gpipe/execute/split/split.h"
#include "gpipe/execute/stage/step_settings.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/interpret/call_lock.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/report/timeline.h"

namespace gpipe::detail {

// One mini-batch, ready to run on all ranks.
struct MiniBatch {
  std::vector<MicroBatch> micro_batches;  // their tensors only where the first stage is
  std::vector<bool> requires_grad;        // of the inputs
  bool needs_grad = true;
  std::vector<int> idle;  // assemblies that all ranks could use
  // Of this replica's part of the mini-batch of all replicas; without replicas it is all there is.
  int first_micro_batch = 0;
  std::int64_t first_sample = 0;
  std::int64_t num_samples = 0;  // of all replicas
};

// Thread-compatible.
class Engine {
 public:
  // `face` gets the layers as its children. Throws as PipelineImpl does. REQUIRES: `face` and `options`, which are
  // checked, outlive it.
  Engine(torch::nn::Module& face, const LayerChain& chain, const PipelineOptions& options);
  // As leave does, unless an error is on its way. In a forked process, leaves alone what only its parent can end.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const PipelineOptions& options() const { return options_; }
  CallLock& calls() { return calls_; }
  Model& model() { return *model_; }
  const Model& model() const { return *model_; }
  Group& group() const { return *group_; }
  const Cut& cut() const { return cut_; }
  // Null until it is known which layers are in which stage.
  Split* split() const { return split_.get(); }
  Runner& runner() { return *runner_; }

  // Whether it is, or may become, a stage or a layer of this process: all layers are before there are stages.
  bool runs_stage(int stage) const { return group_->runs_worker(cut_.worker_of_stage[stage]); }
  bool runs_layer(int layer) const { return !cut_.is_made() || runs_stage(cut_.stage_of(layer)); }
  bool runs_first() const { return runs_stage(0); }
  bool runs_last() const { return runs_stage(cut_.num_stages() - 1); }

  // What this rank is about to do, as far as it is the same for all calls.
  StepCall make_call(const std::string& name) const;
  // Cuts the inputs, and the targets if there are any, into micro-batches, and finds out whether all ranks do the same.
  MiniBatch make_batch(StepCall call, const Tensors& inputs, const Tensors* targets,
                       std::vector<MicroBatch>* target_batches);
  // An assembly for a step of that kind on that batch. The first one makes the cut, if it is left open, and looks for
  // skips.
  Runner::Lease lease(const StepKind& kind, const MiniBatch& batch, const StageLoss& loss, const CallerState& caller);

  // The optimizer step of a stage, on the stage's worker, at the end of each whole step; empty: there is none.
  using Update = std::function<void(int stage)>;
  const Update& update() const { return update_; }
  void set_update(Update update) { update_ = std::move(update); }
  // Of a whole step. Stages are updated in it, unless the step may have to be taken back, or the replicas add up the
  // gradients behind it: then all are updated at its end.
  StepMode whole_step() const;

  // From now on, steps with a backward are recorded.
  void set_recorder(std::shared_ptr<RunRecorder> recorder) { recorder_ = std::move(recorder); }
  bool is_recording() const { return recorder_ != nullptr && !recorder_->is_done(); }
  // The next step; null if it is not recorded. REQUIRES: there are stages.
  std::shared_ptr<StepRecorder> begin_recording(const std::vector<MicroBatch>& micro_batches);
  // What a recording looks at in this process.
  RecordedLayers recorded_layers() const;

  // Steps in training so far.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }
  const Timeline& last_timeline() const { return last_timeline_; }
  void set_last_timeline(const Timeline& timeline) { last_timeline_ = timeline; }

  // Waits until all ranks have come here; nothing can be called after it. Throws PeerError.
  void leave();

 private:
  void end_recording() const;
  void make(torch::nn::Module& face, const LayerChain& chain, Fingerprint* fingerprint);
  void make_cut(int num_layers, const Schedule& schedule);
  // Everything that all ranks must have in common, but for the shapes of parameters.
  Fingerprint describe(const LayerChain& chain) const;
  void make_split();
  void copy_first_replica();
  void cut_by_profile(const MicroBatch& sample, const StageLoss& loss);
  Assembly::Parts parts() const;

  const PipelineOptions& options_;
  CallLock calls_;
  std::unique_ptr<Group> group_;
  std::unique_ptr<Model> model_;
  Cut cut_;
  std::unique_ptr<Split> split_;  // null until the cut is made
  std::unique_ptr<Runner> runner_;
  std::int64_t step_ = 0;
  Timeline last_timeline_;
  Update update_;
  bool has_left_ = false;
  std::shared_ptr<RunRecorder> recorder_;  // null: nobody wants to know
};

}  // namespace gpipe::detail
