#include "train/bench_emulation.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <time.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "models/amoebanet.h"
#include "train/bench_contender.h"
#include "train/bench_statistics.h"
#include "train/bench_transformer.h"

namespace gpipe::train {
namespace {

// So large that 32 micro-batches of it have samples enough: of few, each costs much more, which is no matter of the pipeline.
constexpr std::int64_t kEmulatedSamples = 128;
constexpr std::int64_t kQuickSamples = 32;

// Seconds of the actions of one stage, by kind.
struct StageSamples {
  std::vector<double> forward;
  std::vector<double> recompute;
  std::vector<double> backward;
  std::int64_t output_bytes = 0;
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Work>
double seconds_of_thread(const Work& work) {
  const double start = thread_seconds();
  work();
  return thread_seconds() - start;
}

// The stages of a model, whose actions are run one after the other in this thread.
class EmulatedStages {
 public:
  EmulatedStages(const Workload& workload, const LayerChain& chain, const std::vector<int>& layers_per_stage,
                 bool recomputes)
      : workload_(workload), recomputes_(recomputes) {
    int layer = 0;
    for (const int count : layers_per_stage) {
      stages_.emplace_back();
      for (int index = 0; index < count; ++index) stages_.back().push_back(chain.build(layer++, /*seed=*/0));
    }
  }

  void zero_grad() const {
    for (const std::vector<Layer>& stage : stages_) {
      for (const Layer& layer : stage) layer.module->zero_grad();
    }
  }

  // One step; adds what its actions took to the samples, one a stage. Returns the loss.
  double step(int num_micro_batches, std::vector<StageSamples>& samples) const {
    at::Tensor loss;
    for (const MicroBatch& micro_batch : split_batch(whole_batch(workload_).tensors, num_micro_batches)) {
      const at::Tensor added = run(micro_batch, samples);
      loss = loss.defined() ? loss + added : added;
    }
    return loss.item<double>();
  }

 private:
  // What a backward needs.
  struct Kept {
    Tensors inputs;  // leaves
    Tensors outputs;
  };

  static bool has_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.is_floating_point(); }

  Tensors forward(std::size_t stage, Tensors tensors, const at::Tensor& target, double weight) const {
    for (const Layer& layer : stages_[stage]) tensors = layer.forward(std::move(tensors));
    if (stage + 1 == stages_.size()) return {workload_.loss(tensors.front(), target) * weight};
    return tensors;
  }

  at::Tensor run(MicroBatch micro_batch, std::vector<StageSamples>& samples) const {
    const double weight = static_cast<double>(micro_batch.num_samples) / static_cast<double>(workload_.num_samples());
    const at::Tensor target = micro_batch.tensors.back();
    micro_batch.tensors.pop_back();
    std::vector<Kept> kept(stages_.size());
    Tensors tensors = std::move(micro_batch.tensors);
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      for (const at::Tensor& tensor : tensors) {
        const bool is_leaf = stage > 0 && has_gradient(tensor);
        kept[stage].inputs.push_back(is_leaf ? tensor.detach().requires_grad_(true) : tensor);
      }
      samples[stage].forward.push_back(seconds_of_thread([&] {
        const at::AutoGradMode keeps_graph(!recomputes_);
        kept[stage].outputs = forward(stage, kept[stage].inputs, target, weight);
      }));
      tensors = kept[stage].outputs;
      samples[stage].output_bytes = bytes_of(tensors);
    }
    const at::Tensor loss = tensors.front().detach();
    tensors.clear();
    for (std::size_t stage = stages_.size(); stage-- > 0;) {
      if (recomputes_) {
        samples[stage].recompute.push_back(
            seconds_of_thread([&] { kept[stage].outputs = forward(stage, kept[stage].inputs, target, weight); }));
      }
      samples[stage].backward.push_back(seconds_of_thread([&] {
        backward(kept[stage], stage + 1 == stages_.size() ? Tensors() : kept[stage + 1].inputs);
        kept[stage].outputs.clear();
      }));
    }
    return loss;
  }

  // `successors` are the leaves that the outputs have become; none for the loss.
  static void backward(const Kept& stage, const Tensors& successors) {
    Tensors roots;
    Tensors gradients;
    for (std::size_t index = 0; index < stage.outputs.size(); ++index) {
      if (!stage.outputs[index].requires_grad()) continue;
      if (!successors.empty() && !successors[index].grad().defined()) continue;
      roots.push_back(stage.outputs[index]);
      if (!successors.empty()) gradients.push_back(successors[index].grad());
    }
    torch::autograd::backward(roots, gradients);
  }

  const Workload& workload_;
  const bool recomputes_;
  std::vector<std::vector<Layer>> stages_;
};

Costs costs_of(const std::vector<StageSamples>& samples) {
  Costs costs;
  for (const StageSamples& stage : samples) {
    StageCosts of_stage;
    of_stage.forward_seconds = quantile(stage.forward, 0.5);
    of_stage.backward_seconds = quantile(stage.backward, 0.5);
    of_stage.recompute_seconds = stage.recompute.empty() ? 0 : quantile(stage.recompute, 0.5);
    of_stage.output_bytes = stage.output_bytes;
    costs.stages.push_back(of_stage);
  }
  return costs;
}

StepShares shares_of(const Timeline& timeline) {
  const Breakdown& breakdown = timeline.breakdown;
  const double all = timeline.num_workers() * timeline.makespan_seconds;
  return {timeline.makespan_seconds,         breakdown.useful_seconds / all,
          breakdown.recompute_seconds / all, breakdown.load_imbalance_seconds / all,
          breakdown.bubble_seconds / all,    breakdown.communication_seconds / all};
}

// Of a measured timeline: what a worker waits for others is bubble, whatever it waits for.
StepShares shares_of_measured(const Timeline& timeline) {
  StepShares shares;
  shares.seconds = timeline.makespan_seconds;
  double busy = 0;
  double busiest = 0;
  for (const WorkerTimeline& worker : timeline.workers) {
    for (const Span& span : worker.spans) {
      (span.action.kind == ActionKind::kRecompute ? shares.recompute : shares.useful) +=
          span.end_seconds - span.start_seconds;
    }
    busy += worker.busy_seconds;
    busiest = std::max(busiest, worker.busy_seconds);
  }
  const double all = timeline.num_workers() * timeline.makespan_seconds;
  shares.useful /= all;
  shares.recompute /= all;
  shares.load_imbalance = (timeline.num_workers() * busiest - busy) / all;
  shares.bubble = 1 - shares.useful - shares.recompute - shares.load_imbalance;
  return shares;
}

// One number of micro-batches, with all numbers of stages.
class EmulationOfMicroBatches {
 public:
  EmulationOfMicroBatches(const Workload& workload, const EmulationOptions& options, int num_micro_batches)
      : workload_(workload), options_(options), num_micro_batches_(num_micro_batches), chain_(workload.make()) {
    const std::int64_t rows = split_batch(workload.inputs, num_micro_batches).front().num_samples;
    const at::Tensor target = workload.target.narrow(0, 0, rows);
    ProfileOptions profiling;
    profiling.loss = [&](const Tensors& outputs) { return workload.loss(outputs.front(), target); };
    profile_ = profile(chain_, workload.inputs.front().narrow(0, 0, rows), profiling);
    plain_loss_ = PlainModel(chain_).accumulate(workload, whole_batch(workload), num_micro_batches);
  }

  EmulatedStep run(int num_stages, const std::function<void()>& before_step) const {
    const Plan found = plan_for(num_stages);
    const EmulatedStages stages(workload_, chain_, found.layers_per_stage, options_.recompute != Recompute::kNever);
    std::vector<StageSamples> samples(found.layers_per_stage.size());
    for (int repeat = -1; repeat < options_.num_repeats; ++repeat) {  // the first warms up
      before_step();
      if (repeat == 0) samples.assign(samples.size(), {});
      stages.zero_grad();
      check_loss(stages.step(num_micro_batches_, samples), num_stages);
    }
    Costs costs = costs_of(samples);
    const Schedule schedule = schedule_of(found);
    EmulatedStep step{num_stages, num_micro_batches_, found.layers_per_stage, 0, {}, {}};
    for (const StageCosts& stage : costs.stages) {
      step.alone_seconds += num_micro_batches_ * (stage.forward_seconds + stage.backward_seconds);
    }
    costs.link = fast_interconnect();
    step.fast = shares_of(simulate(schedule, costs));
    costs.link = slow_interconnect();
    step.slow = shares_of(simulate(schedule, costs));
    return step;
  }

  // Two real workers; the median step of the repeats.
  StepShares measure(const std::function<void()>& before_step) const {
    Pipeline pipeline(chain_, PipelineOptions(plan_for(2)).peers(no_peers()));
    std::vector<StepShares> steps;
    for (int repeat = -1; repeat < options_.num_repeats; ++repeat) {
      before_step();
      pipeline->zero_grad();
      step_of(workload_, pipeline);
      if (repeat >= 0) steps.push_back(shares_of_measured(pipeline->last_timeline()));
    }
    std::sort(steps.begin(), steps.end(),
              [](const StepShares& a, const StepShares& b) { return a.seconds < b.seconds; });
    return steps[steps.size() / 2];
  }

 private:
  // What is emulated has to be the step of the plain loop.
  void check_loss(double loss, int num_stages) const {
    if (std::memcmp(&loss, &plain_loss_, sizeof loss) == 0) return;
    throw BenchError(fmt::format("the emulated step of {}, K={}, M={} has the loss {:.9g}, and the plain loop {:.9g}",
                                 workload_.name, num_stages, num_micro_batches_, loss, plain_loss_));
  }

  Plan plan_for(int num_stages) const {
    PlanOptions options;
    options.num_stages = num_stages;
    options.num_micro_batches = num_micro_batches_;
    options.schedule = options_.schedule;
    options.recompute = options_.recompute;
    options.optimizer_slots = 0;
    return plan(profile_, options);
  }

  const Workload& workload_;
  const EmulationOptions& options_;
  const int num_micro_batches_;
  const LayerChain chain_;
  Profile profile_;
  double plain_loss_ = 0;
};

}  // namespace

LinkCosts fast_interconnect() { return {5e-6, 12.5e9}; }
LinkCosts slow_interconnect() { return {50e-6, 0.125e9}; }

const std::vector<std::string>& emulated_workload_names() {
  static const auto* names = new std::vector<std::string>{"transformer", "amoebanet"};
  return *names;
}

Workload make_emulated_workload(const std::string& name, bool quick) {
  torch::manual_seed(0);
  const std::int64_t batch = quick ? kQuickSamples : kEmulatedSamples;
  Workload workload;
  workload.name = name;
  if (name == "transformer") {
    benchmarks::TransformerSizes sizes{48, 128, 4, 512, 64, 1000};
    if (quick) sizes = {8, 32, 2, 64, 16, 50};
    workload.description = fmt::format(
        "{} Transformer layers, d {}, {} heads, feed-forward {}, sequence {}, {} tokens, batch {}", sizes.num_blocks,
        sizes.width, sizes.num_heads, sizes.hidden, sizes.sequence, sizes.num_tokens, batch);
    workload.make = [sizes] { return LayerChain(benchmarks::make_transformer(sizes)); };
    workload.inputs = {torch::randint(sizes.num_tokens, {batch, sizes.sequence}, torch::kLong)};
    workload.target = torch::randint(sizes.num_tokens, {batch, sizes.sequence}, torch::kLong);
    workload.loss = &benchmarks::token_loss;
    return workload;
  }
  const std::int64_t layers = quick ? 3 : 18;
  const std::int64_t filters = quick ? 8 : 32;
  const std::int64_t size = 64;
  workload.description =
      fmt::format("AmoebaNet-D ({}, {}), images of {} x {}, batch {}", layers, filters, size, size, batch);
  workload.make = [layers, filters] {
    return models::amoebanet_d(models::AmoebaNetOptions(layers, filters).num_classes(10).deferred_batch_norm(false));
  };
  workload.inputs = {torch::randn({batch, 3, size, size})};
  workload.target = torch::randint(10, {batch}, torch::kLong);
  workload.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return torch::cross_entropy_loss(output, target);
  };
  return workload;
}

Emulation emulate(const Workload& workload, const EmulationOptions& options,
                  const std::function<void(int num_done, int num_all)>& progress) {
  at::set_num_threads(1);
  const bool measures = std::thread::hardware_concurrency() > 1;
  const int most = *std::max_element(options.num_micro_batches.begin(), options.num_micro_batches.end());
  const int num_all =
      (options.num_repeats + 1) *
      static_cast<int>(options.num_micro_batches.size() * options.num_stages.size() + (measures ? 1 : 0));
  int num_done = 0;
  const auto before_step = [&] { progress(num_done++, num_all); };
  Emulation emulation{
      workload.name, workload.description, options.schedule, name(options.recompute), options.num_repeats, {}, {}};
  for (const int num_micro_batches : options.num_micro_batches) {
    const EmulationOfMicroBatches of_micro_batches(workload, options, num_micro_batches);
    for (const int num_stages : options.num_stages) {
      emulation.steps.push_back(of_micro_batches.run(num_stages, before_step));
    }
    if (measures && num_micro_batches == most) emulation.measured = of_micro_batches.measure(before_step);
  }
  return emulation;
}

}  // namespace gpipe::train
