// Contenders: ways to run one and the same step, which take turns.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "gpipe/gpipe.h"
#include "train/bench_results.h"
#include "train/bench_workload.h"

namespace gpipe::train {

struct TurnResult {
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads of this process
  double loss = 0;
  // Of a pipeline: the share of its workers' time in which they waited, and the share of the seconds from the first
  // action's start to the last one's end.
  std::optional<double> bubble = {};
  std::optional<double> inside = {};
};

// Confined to its thread.
class Contender {
 public:
  virtual ~Contender() = default;

  // One step, forward and backward, measured; gradients are zeroed outside of the measured time.
  virtual TurnResult take_turn() = 0;
  // One more step, which counts bytes; nothing if it cannot tell. Called after the last turn.
  virtual std::optional<BenchPeak> measure_peak() { return {}; }
  // Whether all the work is done in this process, so that what others do meanwhile is noise.
  virtual bool is_in_this_process() const { return true; }
};

// Seconds and processor seconds of `work`, which returns a loss.
TurnResult measure_turn(const std::function<double()>& work);

// A model whose layers are run one after the other in the thread that asks, as libtorch runs them.
class PlainModel {
 public:
  explicit PlainModel(const LayerChain& chain);

  // Adds the gradients of these samples, which are cut into micro-batches, to those that are there. Returns the loss:
  // that of all samples if these are all of the `num_samples`, and their part of it otherwise.
  double accumulate(const Workload& workload, const MicroBatch& samples, int num_micro_batches) const;

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  std::int64_t parameter_bytes() const;  // with buffers
  // Sets them to zero, or lets go of them.
  void zero_grad() const;
  void drop_grad() const;

 private:
  std::vector<Layer> layers_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> buffers_;
};

// All samples of the workload.
MicroBatch whole_batch(const Workload& workload);

// One thread that calls libtorch, with `intra_op_threads` below it.
std::unique_ptr<Contender> make_plain_loop(const Workload& workload, const std::shared_ptr<PlainModel>& model,
                                           int num_micro_batches, int intra_op_threads);

// Two plain loops at once, of the whole work each: what the machine gives to two threads.
std::unique_ptr<Contender> make_two_loops(const Workload& workload,
                                          const std::vector<std::shared_ptr<PlainModel>>& models,
                                          int num_micro_batches);

// A thread and a model for each half of the batch, then the gradients of the first and the second model added up, half
// of the parameters by each thread.
std::unique_ptr<Contender> make_data_parallel(const Workload& workload,
                                              const std::vector<std::shared_ptr<PlainModel>>& models,
                                              int micro_batches_per_replica);

// A pipeline on threads of this process.
std::unique_ptr<Contender> make_pipelined(const Workload& workload, const LayerChain& chain, const Plan& plan);

// The step of a pipeline, and what its stages held if it measures memory.
TurnResult step_of(const Workload& workload, Pipeline& pipeline, std::vector<StageMemory>* memory = nullptr);

// Of stages that live on these workers. A worker's bytes are those of its stages added up, though these need not have
// been at their peaks at the same time.
BenchPeak peak_of(const std::vector<StageMemory>& memory, const std::vector<int>& worker_of_stage);

}  // namespace gpipe::train
