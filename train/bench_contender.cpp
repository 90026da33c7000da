#include "train/bench_contender.h"

#include <ATen/Parallel.h>
#include <time.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <thread>

namespace gpipe::train {
namespace {

constexpr int kNumHalves = 2;

double read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Runs work(0) in a thread of its own and work(1) in this one, each with one intra-op thread. What one of them throws
// is thrown when both have ended.
void run_side_by_side(const std::function<void(int)>& work) {
  std::exception_ptr error;
  std::thread other([&] {
    at::set_num_threads(1);
    try {
      work(0);
    } catch (...) {
      error = std::current_exception();
    }
  });
  try {
    work(1);
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  if (error) std::rethrow_exception(error);
}

std::shared_ptr<MemoryAccount> new_account() { return std::make_shared<MemoryAccount>("bench"); }

class PlainLoop : public Contender {
 public:
  PlainLoop(const Workload& workload, std::shared_ptr<PlainModel> model, int num_micro_batches, int intra_op_threads)
      : workload_(workload),
        model_(std::move(model)),
        num_micro_batches_(num_micro_batches),
        intra_op_threads_(intra_op_threads) {}

  TurnResult take_turn() override {
    model_->zero_grad();
    at::set_num_threads(intra_op_threads_);
    const TurnResult result = measure_turn([&] { return step(); });
    at::set_num_threads(1);
    return result;
  }

  std::optional<BenchPeak> measure_peak() override {
    model_->drop_grad();
    const auto account = new_account();
    at::set_num_threads(intra_op_threads_);
    {
      const MemoryScope scope(account);
      step();
    }
    at::set_num_threads(1);
    const std::int64_t bytes = account->peak_bytes() + model_->parameter_bytes();
    return BenchPeak{bytes, bytes};
  }

 private:
  double step() { return model_->accumulate(workload_, whole_batch(workload_), num_micro_batches_); }

  const Workload& workload_;
  const std::shared_ptr<PlainModel> model_;
  const int num_micro_batches_;
  const int intra_op_threads_;
};

class TwoLoops : public Contender {
 public:
  TwoLoops(const Workload& workload, std::vector<std::shared_ptr<PlainModel>> models, int num_micro_batches)
      : workload_(workload), models_(std::move(models)), num_micro_batches_(num_micro_batches) {}

  TurnResult take_turn() override {
    for (const auto& model : models_) model->zero_grad();
    return measure_turn([&] {
      std::vector<double> losses(kNumHalves);
      run_side_by_side([&](int index) {
        losses[index] = models_[index]->accumulate(workload_, whole_batch(workload_), num_micro_batches_);
      });
      return losses.front();
    });
  }

 private:
  const Workload& workload_;
  const std::vector<std::shared_ptr<PlainModel>> models_;
  const int num_micro_batches_;
};

class DataParallel : public Contender {
 public:
  DataParallel(const Workload& workload, std::vector<std::shared_ptr<PlainModel>> models, int num_micro_batches)
      : workload_(workload), models_(std::move(models)), num_micro_batches_(num_micro_batches) {
    Tensors batch = workload.inputs;
    batch.push_back(workload.target);
    halves_ = split_batch(batch, kNumHalves);
  }

  TurnResult take_turn() override {
    for (const auto& model : models_) model->zero_grad();
    return measure_turn([&] { return step({}); });
  }

  std::optional<BenchPeak> measure_peak() override {
    for (const auto& model : models_) model->drop_grad();
    const std::vector<std::shared_ptr<MemoryAccount>> accounts = {new_account(), new_account()};
    step(accounts);
    BenchPeak peak;
    for (int half = 0; half < kNumHalves; ++half) {
      const std::int64_t bytes = accounts[half]->peak_bytes() + models_[half]->parameter_bytes();
      peak.fullest_bytes = std::max(peak.fullest_bytes, bytes);
      peak.total_bytes += bytes;
    }
    return peak;
  }

 private:
  double step(const std::vector<std::shared_ptr<MemoryAccount>>& accounts) {
    std::vector<double> losses(kNumHalves);
    run_side_by_side([&](int half) {
      const MemoryScope scope(accounts.empty() ? nullptr : accounts[half]);
      losses[half] = models_[half]->accumulate(workload_, halves_[half], num_micro_batches_);
    });
    run_side_by_side([&](int half) { add_gradients(half); });
    return losses[0] + losses[1];
  }

  // Every other parameter of the first model.
  void add_gradients(int half) {
    const at::NoGradGuard no_grad;
    for (std::size_t index = half; index < models_[0]->parameters().size(); index += kNumHalves) {
      at::Tensor sum = models_[0]->parameters()[index].grad();
      const at::Tensor& added = models_[1]->parameters()[index].grad();
      if (sum.defined() && added.defined()) sum.add_(added);
    }
  }

  const Workload& workload_;
  const std::vector<std::shared_ptr<PlainModel>> models_;
  const int num_micro_batches_;
  std::vector<MicroBatch> halves_;
};

class Pipelined : public Contender {
 public:
  Pipelined(const Workload& workload, LayerChain chain, const Plan& plan)
      : workload_(workload), chain_(std::move(chain)), plan_(plan), pipeline_(make(PipelineOptions(plan))) {}

  TurnResult take_turn() override {
    pipeline_->zero_grad();
    return step_of(workload_, pipeline_);
  }

  std::optional<BenchPeak> measure_peak() override {
    Pipeline measuring = make(PipelineOptions(plan_).measure_memory(true));
    for (at::Tensor& parameter : measuring->parameters()) parameter.mutable_grad() = at::Tensor();
    std::vector<StageMemory> memory;
    step_of(workload_, measuring, &memory);
    return peak_of(memory, schedule_of(plan_).worker_of_stage);
  }

 private:
  Pipeline make(PipelineOptions options) const { return Pipeline(chain_, options.peers(no_peers())); }

  const Workload& workload_;
  const LayerChain chain_;
  const Plan plan_;
  Pipeline pipeline_;
};

}  // namespace

TurnResult measure_turn(const std::function<double()>& work) {
  TurnResult result;
  const double start = read_clock(CLOCK_MONOTONIC);
  const double cpu_start = read_clock(CLOCK_PROCESS_CPUTIME_ID);
  result.loss = work();
  result.seconds = read_clock(CLOCK_MONOTONIC) - start;
  result.cpu_seconds = read_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;
  return result;
}

PlainModel::PlainModel(const LayerChain& chain) {
  for (int layer = 0; layer < chain.size(); ++layer) {
    layers_.push_back(chain.build(layer, /*seed=*/0));
    for (const at::Tensor& parameter : layers_.back().module->parameters()) parameters_.push_back(parameter);
    for (const at::Tensor& buffer : layers_.back().module->buffers()) buffers_.push_back(buffer);
  }
}

double PlainModel::accumulate(const Workload& workload, const MicroBatch& samples, int num_micro_batches) const {
  at::Tensor total;
  for (MicroBatch& micro_batch : split_batch(samples.tensors, num_micro_batches)) {
    const at::Tensor target = micro_batch.tensors.back();
    micro_batch.tensors.pop_back();
    Tensors tensors = std::move(micro_batch.tensors);
    for (const Layer& layer : layers_) tensors = layer.forward(std::move(tensors));
    const double weight = static_cast<double>(micro_batch.num_samples) / static_cast<double>(workload.num_samples());
    const at::Tensor loss = workload.loss(tensors.front(), target) * weight;
    tensors.clear();
    loss.backward();
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  return total.item<double>();
}

std::int64_t PlainModel::parameter_bytes() const { return bytes_of(parameters_) + bytes_of(buffers_); }

void PlainModel::zero_grad() const {
  for (const at::Tensor& parameter : parameters_) {
    at::Tensor grad = parameter.grad();
    if (grad.defined()) grad.detach_().zero_();
  }
}

void PlainModel::drop_grad() const {
  for (at::Tensor parameter : parameters_) parameter.mutable_grad() = at::Tensor();
}

MicroBatch whole_batch(const Workload& workload) {
  MicroBatch batch{workload.inputs, 0, workload.num_samples()};
  batch.tensors.push_back(workload.target);
  return batch;
}

std::unique_ptr<Contender> make_plain_loop(const Workload& workload, const std::shared_ptr<PlainModel>& model,
                                           int num_micro_batches, int intra_op_threads) {
  return std::make_unique<PlainLoop>(workload, model, num_micro_batches, intra_op_threads);
}

std::unique_ptr<Contender> make_two_loops(const Workload& workload,
                                          const std::vector<std::shared_ptr<PlainModel>>& models,
                                          int num_micro_batches) {
  return std::make_unique<TwoLoops>(workload, models, num_micro_batches);
}

std::unique_ptr<Contender> make_data_parallel(const Workload& workload,
                                              const std::vector<std::shared_ptr<PlainModel>>& models,
                                              int micro_batches_per_replica) {
  return std::make_unique<DataParallel>(workload, models, micro_batches_per_replica);
}

std::unique_ptr<Contender> make_pipelined(const Workload& workload, const LayerChain& chain, const Plan& plan) {
  return std::make_unique<Pipelined>(workload, chain, plan);
}

TurnResult step_of(const Workload& workload, Pipeline& pipeline, std::vector<StageMemory>* memory) {
  StepResult step;
  TurnResult result = measure_turn([&] {
    step =
        pipeline->train_step(workload.inputs, {workload.target}, [&](const Tensors& outputs, const Tensors& targets) {
          return LossValue(workload.loss(outputs.front(), targets.front()));
        });
    return step.loss.item<double>();
  });
  result.bubble = step.timeline.bubble_fraction;
  result.inside = step.timeline.makespan_seconds / result.seconds;
  if (memory != nullptr) *memory = step.memory;
  return result;
}

BenchPeak peak_of(const std::vector<StageMemory>& memory, const std::vector<int>& worker_of_stage) {
  std::map<int, std::int64_t> by_worker;
  BenchPeak peak;
  for (std::size_t stage = 0; stage < memory.size(); ++stage) {
    by_worker[worker_of_stage[stage]] += memory[stage].peak_bytes;
    peak.total_bytes += memory[stage].peak_bytes;
  }
  for (const auto& [worker, bytes] : by_worker) peak.fullest_bytes = std::max(peak.fullest_bytes, bytes);
  return peak;
}

}  // namespace gpipe::train
