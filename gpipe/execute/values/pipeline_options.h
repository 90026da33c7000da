// PipelineOptions: how a pipeline is to be cut, scheduled and watched.
#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/execute/values/peers.h"
#include "gpipe/interpret/stuck_error.h"
#include "gpipe/model/deferred_weights.h"
#include "gpipe/plan/plan.h"
#include "gpipe/plan/rematerialization.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

enum class LossReduction {
  // The loss of a micro-batch is a mean over its samples; it counts n_i / N. Not if it has a weight: see LossValue.
  kMean,
  // It is a sum over them.
  kSum,
};

struct PipelineOptions {
  PipelineOptions(int num_stages) : num_stages_(num_stages) {}  // NOLINT(google-explicit-constructor)
  // Everything the plan has chosen.
  PipelineOptions(const Plan& plan);  // NOLINT(google-explicit-constructor)

  // Workers; a schedule with several chunks a worker has a multiple of it as stages.
  TORCH_ARG(int, num_stages);
  // The most a mini-batch is cut into; 0 means four times the workers.
  TORCH_ARG(int, num_micro_batches) = 0;
  // A name, or "search": one that is made for this model and the workers, with the layers of each stage, from a profile
  // of the first batch. That takes some seconds once; see search_schedules. The bits are those of all others. Names are
  // "gpipe", "1f1b", "interleaved", "hanayo", "looped-bfs", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v".
  TORCH_ARG(std::string, schedule) = "1f1b";
  // The work of a search, about in seconds.
  TORCH_ARG(double, search_seconds) = 5;
  // One of your own instead, for exactly its number of stages and micro-batches. It is proven before it runs. A batch
  // that makes fewer micro-batches leaves out those that are missing.
  TORCH_ARG(std::optional<Schedule>, custom_schedule) = std::nullopt;
  // Accepts a custom schedule that accumulates the gradients of a stage in another order than that of the
  // micro-batches, for which the last bits are not those of other schedules; see Certificate::canonical.
  TORCH_ARG(bool, allow_noncanonical) = false;
  TORCH_ARG(int, chunks_per_worker) = 0;
  // For schedules that split the backward into input gradients and weight gradients: what the former leave to the
  // latter. The bits are the same.
  TORCH_ARG(DeferredWeights, deferred_weights) = DeferredWeights::kMatrices;
  // kAuto: the first batch is profiled, and layers, recompute and rematerialization are chosen for each stage so that
  // the step is the fastest within memory_limit_bytes; see `plan`.
  TORCH_ARG(Recompute, recompute) = Recompute::kNever;
  // One a stage; empty: `recompute` for all.
  TORCH_ARG(std::vector<Recompute>, recompute_by_stage) = {};
  // One a stage: layers, counted from the stage's first, that drop their activations and are run again in the backward;
  // see parse_rematerialization. Where a stage recomputes as well, this is how its recompute runs. In training only, as
  // recompute is. Needs balance, if there are several stages. Empty: none.
  TORCH_ARG(std::vector<Rematerialization>, rematerialization) = {};
  // Tensors of optimizer state a parameter, to leave room for if layers are split within a limit: 0 SGD, 1 momentum or
  // RMSprop, 2 Adam.
  TORCH_ARG(int, optimizer_slots) = 2;
  // Layers per stage. Empty: the first batch is profiled, for which its first micro-batch is run some times, with the
  // loss, and the layers are split so that a step takes the least time and, if that can be, each stage stays within
  // memory_limit_bytes.
  TORCH_ARG(std::vector<int>, balance) = {};
  // Where the first batch is profiled, a half of its first micro-batch is, too, for the fixed seconds of the layers in
  // Pipeline::profile: see ProfileOptions::fixed_seconds. The split itself does not need them.
  TORCH_ARG(bool, profile_fixed_seconds) = false;
  // Stage s goes to devices[s % devices.size()]: several stages may share one. Empty: all stay where their layers are.
  // In a world of several ranks, those of this rank's stages have to be there, and other ranks may name others.
  TORCH_ARG(std::vector<torch::Device>, devices) = {};
  TORCH_ARG(std::uint64_t, seed) = 0;
  // Intra-op threads of each worker.
  TORCH_ARG(int, threads_per_stage) = 1;
  TORCH_ARG(LossReduction, loss_reduction) = LossReduction::kMean;
  // Positions of inputs that go whole to every micro-batch.
  TORCH_ARG(std::vector<int>, replicated_inputs) = {};
  // Refuses a loss that is not a number, or infinite, with NonFiniteLossError, and puts the gradients back as they
  // were. This costs a copy of the gradients a step.
  TORCH_ARG(bool, check_loss) = false;
  // Gives a step up, with StuckError, in which no worker gets on for this long; 0 = never.
  TORCH_ARG(double, watchdog_seconds) = 0;
  // Counts the bytes of tensors that each stage holds, for StepResult::memory; messages under way belong to no stage.
  // This replaces libtorch's CPU allocator by one that counts, for the whole process; it costs some nanoseconds an
  // allocation. Parameters are counted if they are built by the pipeline (LayerChain::add), or after the first pipeline
  // that measures was made.
  TORCH_ARG(bool, measure_memory) = false;
  // Bytes of tensors that each stage may hold at once: parameters, gradients, activations, and the optimizer's state
  // once it is booked (Pipeline::book). More is refused with OutOfMemoryError; the pipeline stays usable. 0 = no limit.
  // Implies measure_memory. Where a worker has several stages, each may hold as much; a plan's limit is the worker's.
  TORCH_ARG(std::int64_t, memory_limit_bytes) = 0;
  // The processes that run the workers, one each, see `connect`; a world of one, see `no_peers`: threads of this
  // process run them. Null: those that the environment tells of, see read_world.
  TORCH_ARG(std::shared_ptr<Peers>, peers) = nullptr;
  // Called by the watchdog at once; the error itself waits for the layers at work to return.
  TORCH_ARG(std::function<void(const StuckError&)>, on_stuck) = {};
  // Called once while Pipeline::leave, or the destructor, waits for other ranks: with an error that names the one that
  // has not come for 5 seconds, or for an eighth of the world's timeout if that is less. The wait goes on.
  TORCH_ARG(std::function<void(const PeerError&)>, on_late_rank) = {};

 public:
  // Adds a text that all ranks have to give alike, such as "learning rate 0.1": anything of the program that would make
  // ranks train different things. They are compared when the pipeline is made, in the order in which they were added;
  // where they differ, every rank throws FingerprintError with both texts.
  PipelineOptions& agree_on(std::string text) {
    agreed_texts_.push_back(std::move(text));
    return *this;
  }
  const std::vector<std::string>& agreed_texts() const { return agreed_texts_; }

  // Whether balance is still that of the plan that the options were made of.
  bool has_balance_of_plan() const { return !balance_of_plan_.empty() && balance_ == balance_of_plan_; }

 private:
  std::vector<std::string> agreed_texts_;
  std::vector<int> balance_of_plan_;
};

}  // namespace gpipe
