#include "train/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>

#include "cli/quantity.h"
#include "gpipe/error.h"
#include "gpipe/plan/plan.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/simulate.h"

namespace gpipe::train {
namespace {

constexpr int kLeastSteps = 5;
constexpr double kLeastGain = 1.03;
constexpr std::size_t kMostSentences = 2;
constexpr double kLeastForwardSeconds = 1e-3;
// What a quiet machine with enough cores stays above.
constexpr double kLeastProcessorFraction = 0.85;
// Times a stage and a micro-batch: a forecast takes no longer than some milliseconds.
constexpr std::int64_t kMostCells = 100'000;
// Schedules that are so near to each other are equal, and the one that holds less wins.
constexpr double kNear = 1.01;
// How much more may be held without a word.
constexpr double kAboutAsMuch = 1.05;

struct Sentence {
  double gain = 1;
  std::string text;
};

struct Forecast {
  double seconds = 0;
  double peak_activations = 0;  // of the fullest worker, in micro-batches
  std::vector<int> layers_per_stage;
  bool has_whole = false;  // backwards, and split ones
  bool has_split = false;
};

bool has_whole_backward(const Schedule& schedule) {
  for (const std::vector<Action>& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kBackward) return true;
    }
  }
  return false;
}

std::size_t index_of(ActionKind kind) { return static_cast<std::size_t>(kind); }

// The layers' seconds, which add up to those of the stages.
class Calibrated {
 public:
  explicit Calibrated(const TrainedRun& run) : layers_are_equal_(run.profile.layers.empty()) {
    profile_ = run.profile;
    const int num_layers = std::accumulate(run.layers_per_stage.begin(), run.layers_per_stage.end(), 0);
    LayerProfile equal;
    equal.forward_seconds = equal.backward_seconds = 1;
    if (layers_are_equal_) profile_.layers.assign(num_layers, equal);
    profile_.skips.clear();  // messages cost nothing between threads
    int begin = 0;
    for (std::size_t stage = 0; stage < run.layers_per_stage.size(); ++stage) {
      const int end = begin + run.layers_per_stage[stage];
      calibrate(run.steps.stages()[stage], begin, end, stage == 0);
      begin = end;
    }
  }

  // With the seconds of micro-batches that are `factor` times as large.
  Profile scaled(double factor) const {
    Profile result = profile_;
    for (LayerProfile& layer : result.layers) layer = with_scaled_seconds(std::move(layer), factor);
    return result;
  }

  bool knows_fixed_seconds() const {
    return std::all_of(profile_.layers.begin(), profile_.layers.end(), [](const LayerProfile& layer) {
      return layer.fixed_forward_seconds && layer.fixed_backward_seconds;
    });
  }
  bool layers_are_equal() const { return layers_are_equal_; }
  bool halves_are_assumed() const { return halves_are_assumed_; }
  // Every stage has run whole backwards.
  bool has_whole_backwards() const { return has_whole_backwards_; }

 private:
  void calibrate(const StageTimes& times, int begin, int end, bool is_first) {
    const double forward = times[index_of(ActionKind::kForward)].mean();
    const double whole = times[index_of(ActionKind::kBackward)].mean();
    const double input_grad = times[index_of(ActionKind::kInputGrad)].mean();
    const double weight_grad = times[index_of(ActionKind::kWeightGrad)].mean();
    const bool is_whole = times[index_of(ActionKind::kBackward)].count > 0;
    // The first stage has no input gradient: its two parts say nothing about those of its layers elsewhere.
    const bool is_split = times[index_of(ActionKind::kWeightGrad)].count > 0 && !is_first;
    has_whole_backwards_ = has_whole_backwards_ && is_whole;
    const double backward = is_whole ? whole : input_grad + weight_grad;
    double forward_sum = 0;
    double backward_sum = 0;
    for (int index = begin; index < end; ++index) {
      forward_sum += profile_.layers[index].forward_seconds;
      backward_sum += profile_.layers[index].backward_seconds;
    }
    const double equal_share = 1.0 / (end - begin);
    for (int index = begin; index < end; ++index) {
      LayerProfile& layer = profile_.layers[index];
      const double backward_share = backward_sum > 0 ? layer.backward_seconds / backward_sum : equal_share;
      const double of_inputs = layer.backward_seconds > 0 ? input_grad_seconds(layer) / layer.backward_seconds : 0.5;
      if (!is_split && !layer.input_grad_seconds && !layer.weight_grad_seconds) halves_are_assumed_ = true;
      const LayerProfile profiled = layer;
      layer.forward_seconds = forward * (forward_sum > 0 ? layer.forward_seconds / forward_sum : equal_share);
      layer.backward_seconds = backward * backward_share;
      layer.input_grad_seconds = is_split ? input_grad * backward_share : layer.backward_seconds * of_inputs;
      layer.weight_grad_seconds =
          is_split ? weight_grad * backward_share : layer.backward_seconds - *layer.input_grad_seconds;
      keep_share(layer.fixed_forward_seconds, profiled.forward_seconds, layer.forward_seconds);
      keep_share(layer.fixed_backward_seconds, profiled.backward_seconds, layer.backward_seconds);
    }
  }

  // Of what was profiled, a fixed part is the same share as of what was measured.
  static void keep_share(std::optional<double>& fixed, double profiled, double measured) {
    if (fixed) *fixed = profiled > 0 ? std::min(1.0, *fixed / profiled) * measured : 0;
  }

  Profile profile_;
  bool layers_are_equal_;
  bool halves_are_assumed_ = false;
  bool has_whole_backwards_ = true;
};

// Forecasts other runs, and writes down what is gained.
class Adviser {
 public:
  explicit Adviser(const TrainedRun& run) : run_(run), calibrated_(run) {
    const StepOverhead overhead = run.steps.overhead();
    makespan_ = run.steps.makespan_seconds();
    step_ = makespan_ + overhead.data_seconds + overhead.update_seconds;
    present_ = forecast(run.schedule, chunks(), run.steps.num_micro_batches(), run.layers_per_stage);
  }

  std::vector<Sentence> sentences() const {
    std::vector<Sentence> result;
    for (const auto& sentence : {bubble(), imbalance(), update(), data()}) {
      if (sentence && sentence->gain >= kLeastGain) result.push_back(*sentence);
    }
    return result;
  }

 private:
  // Something to try for less of a bubble.
  struct Choice {
    double gain = 1;
    std::string text;
  };

  int chunks() const { return static_cast<int>(run_.layers_per_stage.size()) / run_.num_workers; }

  // A run like this one with other layers of a stage, or, without them, cut anew. Nothing if there is none.
  std::optional<Forecast> forecast(const std::string& schedule, int chunks, int num_micro_batches,
                                   const std::vector<int>& layers_per_stage) const {
    if (schedule.empty()) return std::nullopt;
    if (std::int64_t{run_.num_workers} * chunks * num_micro_batches > kMostCells) return std::nullopt;
    PlanOptions options;
    options.num_stages = run_.num_workers;
    options.num_micro_batches = num_micro_batches;
    options.schedule = schedule;
    options.chunks = chunks;
    options.recompute = run_.recompute;
    const Profile profile = calibrated_.scaled(factor(num_micro_batches));
    try {
      const Plan plan = layers_per_stage.empty() ? partitioned_plan(profile, options, /*find_smallest=*/false)
                                                 : plan_with_layers(profile, options, layers_per_stage);
      const Schedule actions = schedule_of(plan);
      SimulateOptions without_path;
      without_path.critical_path = false;
      const std::vector<double> peaks = peak_activations_by_worker(actions);
      return Forecast{simulate(actions, plan.costs, without_path).makespan_seconds,
                      *std::max_element(peaks.begin(), peaks.end()), plan.layers_per_stage, has_whole_backward(actions),
                      actions.splits_backward()};
    } catch (const InvalidArgument&) {  // no such schedule, or more stages than layers
      return std::nullopt;
    }
  }

  // The size of the largest micro-batch over that of the present one.
  double factor(int num_micro_batches) const {
    const int present = run_.steps.num_micro_batches();
    if (num_micro_batches == present) return 1;
    if (run_.num_rows == 0) return static_cast<double>(present) / num_micro_batches;
    const int largest = (run_.num_rows - 1) / num_micro_batches + 1;
    return static_cast<double>(largest) * present / run_.num_rows;
  }

  // Of a whole step, if its forward and backward take what was forecast.
  double gain_of(const Forecast& other) const {
    if (!(present_->seconds > 0)) return 1;
    return step_ / (step_ - makespan_ * (1 - other.seconds / present_->seconds));
  }

  // "(about 1.08x predicted)"
  static std::string promise(double gain, bool is_about, const std::string& price = "") {
    return fmt::format("({}{:.2f}x predicted{})", is_about ? "about " : "", gain, price);
  }

  // What a training with a plan is told to try is said to `gpipe plan`.
  std::string option(const std::string& text) const { return (run_.has_plan ? "a plan with " : "") + text; }

  // Twice as many, or as many as there can be.
  std::optional<Choice> other_micro_batches() const {
    const std::int64_t present = run_.steps.num_micro_batches();
    const int count = static_cast<int>(std::min<std::int64_t>(2 * present, run_.most_micro_batches));
    if (count <= present || mean_forward_seconds() * factor(count) < kLeastForwardSeconds) return std::nullopt;
    const auto other = forecast(run_.schedule, chunks(), count, run_.layers_per_stage);
    if (!other) return std::nullopt;
    const double gain = gain_of(*other);
    return Choice{gain, fmt::format("{} {}", option(fmt::format("--micro-batches {}", count)),
                                    promise(gain, !calibrated_.knows_fixed_seconds()))};
  }

  double mean_forward_seconds() const {
    ActionTimes all;
    for (const StageTimes& stage : run_.steps.stages()) {
      all.seconds += stage[index_of(ActionKind::kForward)].seconds;
      all.count += stage[index_of(ActionKind::kForward)].count;
    }
    return all.mean();
  }

  // How many stages of a worker the schedule would have; nothing if the command's options do not go with it.
  std::optional<int> chunks_of(const ScheduleInfo& info) const {
    const int count = run_.has_chunks ? chunks() : info.default_chunks;
    const bool goes_well = takes_chunks(info, count) && (!run_.has_balance || count == chunks());
    return goes_well && info.name != run_.schedule ? std::optional(count) : std::nullopt;
  }

  std::optional<Choice> other_schedule() const {
    if (run_.has_memory_limit) return std::nullopt;  // another schedule may hold more
    struct Candidate {
      const ScheduleInfo* info;
      Forecast forecast;
      bool is_about;
    };
    std::vector<Candidate> candidates;
    for (const ScheduleInfo& info : schedule_registry()) {
      const std::optional<int> count = chunks_of(info);
      if (!count) continue;
      const Schedule shape = info.generate(1, 1, *count);
      if (!shape.has_backward()) continue;
      const bool keeps_cut = *count == chunks();
      const auto other = forecast(info.name, *count, run_.steps.num_micro_batches(),
                                  keeps_cut ? run_.layers_per_stage : std::vector<int>());
      if (!other) continue;
      if (other->has_whole && !calibrated_.has_whole_backwards()) continue;
      const bool is_about =
          (other->has_split && calibrated_.halves_are_assumed()) || (!keeps_cut && calibrated_.layers_are_equal());
      candidates.push_back({&info, *other, is_about});
    }
    if (candidates.empty()) return std::nullopt;
    const auto least = std::min_element(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
      return a.forecast.seconds < b.forecast.seconds;
    });
    const double near = least->forecast.seconds * kNear;
    const Candidate* best = nullptr;
    for (const Candidate& candidate : candidates) {
      if (candidate.forecast.seconds > near) continue;
      if (best == nullptr || candidate.forecast.peak_activations < best->forecast.peak_activations) best = &candidate;
    }
    const double gain = gain_of(best->forecast);
    const double held = best->forecast.peak_activations / present_->peak_activations;
    const std::string price = held > kAboutAsMuch ? fmt::format(", with {:.1f} times the activations", held) : "";
    return Choice{gain, fmt::format("{} {}", option(fmt::format("--schedule {}", best->info->name)),
                                    promise(gain, best->is_about, price))};
  }

  std::optional<Sentence> bubble() const {
    if (!present_ || run_.num_workers == 1) return std::nullopt;
    std::vector<Choice> choices;
    for (const auto& choice : {other_micro_batches(), other_schedule()}) {
      if (choice && choice->gain >= kLeastGain) choices.push_back(*choice);
    }
    if (choices.empty()) return std::nullopt;
    std::stable_sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.gain > b.gain; });
    std::string text =
        fmt::format("bubble {}: try {}", cli::format_percent(run_.steps.bubble_fraction()), choices.front().text);
    if (choices.size() > 1) text += " or " + choices.back().text;
    return Sentence{choices.front().gain, text};
  }

  std::optional<Sentence> imbalance() const {
    const bool is_free = !run_.has_memory_limit && !run_.chooses_recompute;
    if (!present_ || run_.num_workers == 1 || (!is_free && !run_.has_balance && !run_.has_plan)) return std::nullopt;
    const auto other = forecast(run_.schedule, chunks(), run_.steps.num_micro_batches(), {});
    if (!other) return std::nullopt;
    const double gain = gain_of(*other);
    std::string remedy = fmt::format("--balance {}", fmt::join(other->layers_per_stage, ","));
    if (run_.has_balance) remedy = "it without --balance";
    if (run_.has_plan) remedy = "a plan from a new profile";
    return Sentence{gain, fmt::format("imbalance {}: try {} {}", cli::format_percent(run_.steps.imbalance_fraction()),
                                      remedy, promise(gain, calibrated_.layers_are_equal()))};
  }

  std::optional<Sentence> update() const {
    if (run_.size_option.empty()) return std::nullopt;
    const double seconds = run_.steps.overhead().update_seconds;
    const double gain = step_ / (step_ - seconds / 2);
    return Sentence{gain,
                    fmt::format("weight update {}: with a mini-batch twice as large ({}) there are half as many {}",
                                cli::format_percent(seconds / step_), run_.size_option, promise(gain, false))};
  }

  std::optional<Sentence> data() const {
    const double seconds = run_.steps.overhead().data_seconds;
    const bool all_taken = run_.num_local_workers * run_.threads_per_stage >= run_.num_cores;
    if (run_.preparing_option.empty() && !all_taken) return std::nullopt;
    const double gain = step_ / (step_ - seconds);
    const std::string remedy =
        run_.preparing_option.empty()
            ? "leave a core to the thread that prepares batches"
            : fmt::format("the thread that prepares batches falls behind, try it without {}", run_.preparing_option);
    return Sentence{gain, fmt::format("waiting for data {}: {} (up to {:.2f}x)", cli::format_percent(seconds / step_),
                                      remedy, gain)};
  }

  const TrainedRun& run_;
  const Calibrated calibrated_;
  double makespan_ = 0;
  double step_ = 0;
  std::optional<Forecast> present_;
};

// Nothing if every worker has its cores.
std::optional<std::string> shared_cores(const TrainedRun& run) {
  const int num_workers = run.num_local_workers;
  if (num_workers * run.threads_per_stage <= run.num_cores) return std::nullopt;
  const std::string what = fmt::format(
      "{} {}{} on {} {} take turns", num_workers,
      run.is_launched ? (num_workers == 1 ? "process" : "processes") : (num_workers == 1 ? "worker" : "workers"),
      run.threads_per_stage == 1 ? "" : fmt::format(" of {} threads", run.threads_per_stage), run.num_cores,
      run.num_cores == 1 ? "core" : "cores");
  const int threads = run.num_cores / num_workers;
  if (threads > 0) return fmt::format("{}: try --threads-per-stage {}", what, threads);
  const int fitting = std::max(1, run.num_cores / run.threads_per_stage);
  if (run.is_launched) return fmt::format("{}: start {} on this machine", what, fitting);
  return fmt::format("{}: try {}--stages {}{}", what, run.has_plan ? "a plan with " : "", fitting,
                     run.has_balance ? " without --balance" : "");
}

// Nothing if the workers had their processors.
std::optional<std::string> busy_machine(const TrainedRun& run) {
  const double fraction = run.steps.processor_fraction();
  if (fraction >= kLeastProcessorFraction) return std::nullopt;
  return fmt::format(
      "the workers had a processor for only {} of the time of their actions: the machine was busy with something else, "
      "or has fewer cores than workers; measure on a quiet machine before you change options",
      cli::format_percent(fraction));
}

}  // namespace

std::vector<std::string> advice(const TrainedRun& run) {
  if (run.steps.num_steps() < kLeastSteps) return {};
  if (const auto sentence = shared_cores(run)) return {*sentence};
  if (const auto sentence = busy_machine(run)) return {*sentence};
  std::vector<Sentence> sentences = Adviser(run).sentences();
  std::stable_sort(sentences.begin(), sentences.end(), [](const auto& a, const auto& b) { return a.gain > b.gain; });
  sentences.resize(std::min(sentences.size(), kMostSentences));
  std::vector<std::string> result;
  for (Sentence& sentence : sentences) {
    result.push_back((result.empty() ? "" : "or instead, ") + std::move(sentence.text));
  }
  return result;
}

}  // namespace gpipe::train
