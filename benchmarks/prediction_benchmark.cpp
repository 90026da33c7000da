// How near a prediction comes to what is measured, and what the partition that was found is worth.
//
//   prediction_benchmark [rounds] [actions]   default: 5; about ten minutes
//
// First, on the Transformer of 8 blocks (see bench_transformer.h), batch 32, and on a CNN whose layers are very
// unequal, batch 64: the step time and each stage's peak bytes. Every round profiles one micro-batch and runs one real
// step of each setting, so that a machine which becomes slower or faster moves both; the median ratio counts. With
// `actions` also of each kind of action. `core` is the share of a core that a busy worker got: below 0.95, something
// else ran on the machine, and the times mean little.
//
// Then, on small versions of the models of the paper: the measured step with the partition that was found against that
// with equal numbers of layers, in turn.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/execute/freed_memory.h"
#include "gpipe/gpipe.h"
#include "gpipe/report/compare.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/simulate/simulate.h"
#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/transformer_lm.h"
#include "models/translation_transformer.h"
#include "models/unet.h"
#include "train/bench_transformer.h"

namespace gpipe::benchmarks {
namespace {

constexpr int kNumStages = 2;
constexpr int kNumMicroBatches = 8;

struct Subject {
  std::string name;
  LayerChain model;
  Tensors input;
  at::Tensor target;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> loss;
};

at::Tensor class_loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}

torch::nn::Sequential make_unequal_cnn() {
  torch::nn::Sequential model;
  int channels = 3;
  for (int block = 0; block < 5; ++block) {
    const int wider = 16 << block;
    model->push_back(fmt::format("conv{}", block),
                     torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, wider, 3).padding(1)));
    model->push_back(fmt::format("relu{}", block), torch::nn::ReLU());
    model->push_back(fmt::format("pool{}", block), torch::nn::MaxPool2d(2));
    channels = wider;
  }
  model->push_back("flatten", torch::nn::Flatten());
  model->push_back("head", torch::nn::Linear(channels * 4, 10));
  return model;
}

at::Tensor tokens(std::int64_t samples, std::int64_t length) {
  return torch::randint(kNumTokens, {samples, length}, torch::kLong);
}
at::Tensor classes(std::int64_t samples) { return torch::randint(10, {samples}, torch::kLong); }

std::vector<Subject> predicted_subjects() {
  return {{"transformer", make_transformer(), {tokens(32, kSequence)}, tokens(32, kSequence), &token_loss},
          {"unequal cnn", make_unequal_cnn(), {torch::randn({64, 3, 64, 64})}, classes(64), &class_loss}};
}

std::vector<Subject> partitioned_subjects() {
  using namespace gpipe::models;  // NOLINT(google-build-using-namespace)
  const auto lm = TransformerLmOptions(kNumTokens, 6).width(128).feed_forward_width(512).num_heads(4);
  const auto translation = TranslationTransformerOptions(3, 512, 4).width(128).vocabulary_size(kNumTokens);
  const auto pixel_loss = [](const at::Tensor& output, const at::Tensor& target) {
    return torch::mse_loss(output, target);
  };
  std::vector<Subject> subjects;
  const auto add = [&](const std::string& name, const LayerChain& model, const Tensors& input, const at::Tensor& target,
                       const auto& loss) {
    subjects.push_back({name, model, input, target, loss});
  };
  const at::Tensor images = torch::randn({16, 3, 64, 64});
  add("amoebanet-d (6, 32)", amoebanet_d(AmoebaNetOptions(6, 32).num_classes(10)), {images}, classes(16), &class_loss);
  add("resnet-50, 64 px", resnet50(10), {images}, classes(16), &class_loss);
  add("u-net (3, 2, 16)", unet(UNetOptions(3, 2, 16)), {images}, torch::randn({16, 1, 64, 64}), pixel_loss);
  add("transformer-6", transformer_lm(lm), {tokens(32, 64)}, tokens(32, 64), &token_loss);
  add("translation-3", translation_transformer(translation), {tokens(32, 40), tokens(32, 41)}, tokens(32, 41),
      &token_loss);
  return subjects;
}

Profile profile_of(const Subject& subject) {
  Tensors sample;
  const std::int64_t rows = subject.target.size(0) / kNumMicroBatches;
  for (const at::Tensor& tensor : subject.input) sample.push_back(tensor.narrow(0, 0, rows));
  const at::Tensor target = subject.target.narrow(0, 0, rows);
  ProfileOptions options;
  options.busy_neighbours = kNumStages - 1;
  options.loss = [&](const Tensors& outputs) { return subject.loss(outputs.front(), target); };
  return profile(subject.model, sample, options);
}

StepResult step_of(const Subject& subject, Pipeline& pipeline) {
  return pipeline->train_step(subject.input, {subject.target}, [&](const Tensors& outputs, const Tensors& targets) {
    return subject.loss(outputs.front(), targets.front());
  });
}

Plan plan_of(const Subject& subject, const std::string& schedule, Recompute recompute) {
  PlanOptions options;
  options.num_stages = kNumStages;
  options.num_micro_batches = kNumMicroBatches;
  options.schedule = schedule;
  options.recompute = recompute;
  options.optimizer_slots = 0;
  return plan(profile_of(subject), options);
}

std::string layers_of(const Plan& plan) { return fmt::format("{}", fmt::join(plan.layers_per_stage, "+")); }

// One schedule and recompute mode.
class Setting {
 public:
  Setting(const Subject& subject, const std::string& schedule, Recompute recompute)
      : subject_(subject),
        plan_(plan_of(subject, schedule, recompute)),
        schedule_(schedule_of(plan_)),
        pipeline_(subject.model, PipelineOptions(plan_).measure_memory(true)) {
    step_of(subject_, pipeline_);  // makes the gradients
    const std::vector<StageMemory> memory = step_of(subject_, pipeline_).memory;
    if (schedule_.num_stages > kNumStages) return;  // measured by stage, predicted by worker
    for (int stage = 0; stage < kNumStages; ++stage) {
      const double ratio =
          static_cast<double>(plan_.predicted_peak_bytes[stage]) / static_cast<double>(memory[stage].peak_bytes);
      if (std::abs(ratio - 1) > std::abs(worst_bytes_ - 1)) worst_bytes_ = ratio;
    }
  }

  void run(const Profile& profile) {
    const Timeline predicted = simulate(schedule_, stage_costs(profile, plan_.layers_per_stage, {}, 0));
    StepResult step;
    const Seconds seconds = measure([&] { step = step_of(subject_, pipeline_); });
    double busy = 0;
    for (const WorkerTimeline& worker : step.timeline.workers) busy += worker.busy_seconds;
    predicted_.push_back(predicted.makespan_seconds);
    measured_.push_back(step.timeline.makespan_seconds);
    ratios_.push_back(predicted_.back() / measured_.back());
    cores_.push_back(seconds.cpu / busy);
    comparisons_.push_back(compare(predicted, step.timeline));
  }

  void print() const {
    const auto [least, most] = std::minmax_element(ratios_.begin(), ratios_.end());
    fmt::print("{:<12} {:>10} {:>9} {:>9} | {:>9.3f} {:>9.3f} {:>6.3f} ({:.3f}-{:.3f}) | {:>6.3f} | {:>5.2f}\n",
               subject_.name, plan_.schedule, name(plan_.recompute), layers_of(plan_), median(predicted_),
               median(measured_), median(ratios_), *least, *most, worst_bytes_, median(cores_));
    std::fflush(stdout);
  }
  // Of each kind of action: medians over the rounds.
  void print_actions() const {
    for (int stage = 0; stage < schedule_.num_stages; ++stage) {
      const std::vector<KindComparison>& kinds = comparisons_.front().stages[stage].kinds;
      for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
        std::vector<double> milliseconds;
        std::vector<double> ratios;
        for (const Comparison& comparison : comparisons_) {
          const Compared& seconds = comparison.stages[stage].kinds[kind].mean_seconds;
          milliseconds.push_back(1e3 * seconds.measured);
          ratios.push_back(seconds.ratio());
        }
        fmt::print("{:<12} {:>10} {:>9} {:>9} | {:<9} {:>9.2f} {:>6.3f}\n", "", "", "", fmt::format("stage {}", stage),
                   gpipe::name(kinds[kind].kind), median(milliseconds), median(ratios));
      }
    }
  }

 private:
  const Subject& subject_;
  const Plan plan_;
  const Schedule schedule_;
  Pipeline pipeline_;
  std::vector<double> predicted_;
  std::vector<double> measured_;
  std::vector<double> ratios_;
  std::vector<double> cores_;
  double worst_bytes_ = 1;
  std::vector<Comparison> comparisons_;
};

void predict(const Subject& subject, int rounds, bool with_actions) {
  std::vector<std::unique_ptr<Setting>> settings;
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (const Recompute recompute : {Recompute::kNever, Recompute::kAlways}) {
      settings.push_back(std::make_unique<Setting>(subject, schedule, recompute));
    }
  }
  for (const char* schedule : {"zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v"}) {
    settings.push_back(std::make_unique<Setting>(subject, schedule, Recompute::kNever));
  }
  for (int round = 0; round < rounds; ++round) {
    for (const auto& setting : settings) setting->run(profile_of(subject));
  }
  for (const auto& setting : settings) {
    setting->print();
    if (with_actions) setting->print_actions();
  }
}

void partition(const Subject& subject, int rounds) {
  const Plan found = plan_of(subject, "1f1b", Recompute::kNever);
  const int num_layers = subject.model.size();
  const std::vector<int> equal = {(num_layers + 1) / 2, num_layers / 2};
  Pipeline with_found(subject.model, PipelineOptions(found));
  Pipeline with_equal(subject.model, PipelineOptions(found).balance(equal));
  std::vector<double> found_seconds;
  std::vector<double> equal_seconds;
  std::vector<double> ratios;
  for (int round = -1; round < 10 * rounds; ++round) {
    const double seconds = step_of(subject, with_found).timeline.makespan_seconds;
    const double other_seconds = step_of(subject, with_equal).timeline.makespan_seconds;
    if (round < 0) continue;
    found_seconds.push_back(seconds);
    equal_seconds.push_back(other_seconds);
    ratios.push_back(seconds / other_seconds);
  }
  fmt::print("{:<20} {:>7} {:>7} | {:>9.3f} {:>9.3f} | {:>6.3f}{}\n", subject.name, layers_of(found),
             fmt::format("{}", fmt::join(equal, "+")), median(found_seconds), median(equal_seconds), median(ratios),
             found.layers_per_stage == equal ? "  the same" : "");
  std::fflush(stdout);
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  using namespace gpipe::benchmarks;  // NOLINT(google-build-using-namespace)
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const bool with_actions = argc > 2 && std::string(argv[2]) == "actions";
  gpipe::keep_freed_memory();
  at::set_num_threads(1);
  torch::manual_seed(1);
  const auto counted = std::make_shared<gpipe::MemoryAccount>("parameters");  // so that they count from the start
  fmt::print("K = 2, M = 8, one intra-op thread each; medians of {} rounds\n\n", rounds);
  fmt::print("{:<12} {:>10} {:>9} {:>9} | {:>9} {:>9} {:>6} {:<13} | {:>6} | {:>5}\n", "", "", "recompute", "layers",
             "predicted", "measured", "ratio", "(least-most)", "bytes", "core");
  const std::vector<Subject> subjects = predicted_subjects();
  predict(subjects[0], rounds, with_actions);
  predict(subjects[1], 10 * rounds, with_actions);  // they are short
  fmt::print("\n1f1b; the partition that was found and equal numbers of layers, measured\n\n");
  fmt::print("{:<20} {:>7} {:>7} | {:>9} {:>9} | {:>6}\n", "", "found", "equal", "found", "equal", "ratio");
  for (const Subject& subject : partitioned_subjects()) partition(subject, rounds);
}
