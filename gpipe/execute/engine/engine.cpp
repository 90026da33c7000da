#include "gpipe/execute/engine/engine.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/version.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/runner/first_batch.h"
#include "gpipe/execute/runner/skip_trial.h"
#include "gpipe/execute/values/checked_options.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/os/processors.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/transport/wire_record.h"
#include "gpipe/version.h"

namespace gpipe::detail {
namespace {

// What helps where the schedule has more stages than the model has layers.
std::string remedy_for_few_layers(const PipelineOptions& options, const Schedule& schedule, int num_layers) {
  if (options.custom_schedule()) return "give a schedule of fewer stages, or split layers";
  const int num_workers = schedule.num_workers();
  const int chunks = schedule.num_stages / num_workers;
  if (chunks == 1 || num_workers > num_layers) return "lower num_stages, or split layers";
  const ScheduleInfo& info = find_schedule(options.schedule());
  for (int fewer = 1; fewer < chunks; ++fewer) {
    if (takes_chunks(info, fewer)) return "lower num_stages or chunks_per_worker, or split layers";
  }
  return fmt::format(
      "{} always puts {} stages on a worker; take schedule {}, which puts one there, lower num_stages, "
      "or split layers",
      info.name, valid_chunks(info), with_one_stage_a_worker(info).name);
}

}  // namespace

Engine::Engine(torch::nn::Module& face, const LayerChain& chain, const PipelineOptions& options)
    : options_(options), group_(Group::find(options.peers())) {
  group_->begin([&](Fingerprint* fingerprint) { make(face, chain, fingerprint); });
  if (split_ != nullptr) copy_first_replica();
}

void Engine::make(torch::nn::Module& face, const LayerChain& chain, Fingerprint* fingerprint) {
  if (fingerprint != nullptr) *fingerprint = describe(chain);
  group_->check_num_workers(options_.num_stages());
  const Schedule schedule = schedule_for(options_, options_.num_micro_batches());
  ValidateOptions proof;
  proof.compute_capacities = false;  // they are those of the schedule that runs, which may have skips and ties
  const Certificate certificate = validate(schedule, proof);
  check_canonical(options_, schedule, certificate);
  const int num_workers = group_->num_own_workers(options_.num_stages());
  if (options_.threads_per_stage() > 1) {
    check_threads(fmt::format("threads_per_stage {} x {} stages", options_.threads_per_stage(), num_workers),
                  std::int64_t{options_.threads_per_stage()} * num_workers);
  }
  make_cut(chain.size(), schedule);
  // Parameters are counted only if they are built after the first account was made.
  if (options_.measure_memory()) const MemoryAccount first("the first of the process");
  model_ = std::make_unique<Model>(
      face, chain, options_.seed(), [this](int layer) { return runs_layer(layer); },
      schedule.num_stages > 1 ? Model::Sharing::kRefused : Model::Sharing::kAllowed);
  runner_ = std::make_unique<Runner>(num_workers, options_);
  if (fingerprint != nullptr) {
    const Fingerprint shapes = model_->shapes([&](int layer) { return !cut_.is_made() || chain.is_built(layer); });
    fingerprint->insert(fingerprint->end(), shapes.begin(), shapes.end());
  }
  model_->bind_ties(chain);  // last, because it changes the layers
  if (cut_.is_made()) make_split();
}

void Engine::make_cut(int num_layers, const Schedule& schedule) {
  cut_.worker_of_stage = schedule.worker_of_stage;
  for (int stage = 0; stage < cut_.num_stages(); ++stage) {
    const std::optional<torch::Device> device = device_of_stage(options_, stage);
    if (device && runs_stage(stage)) check_device_is_there(*device);
  }
  if (num_layers == 0) throw InvalidArgument("the model has no layers");
  check_plan(options_, num_layers);
  if (schedule.num_stages > num_layers) {
    const int chunks = schedule.num_stages / schedule.num_workers();
    throw InvalidArgument(
        fmt::format("{} stages{} for {} layers; each stage needs a layer: {}", schedule.num_stages,
                    chunks > 1 ? fmt::format(" ({} workers x {} chunks)", schedule.num_workers(), chunks) : "",
                    num_layers, remedy_for_few_layers(options_, schedule, num_layers)));
  }
  if (!options_.balance().empty()) {
    check_balance(options_.balance(), num_layers, schedule.num_stages);
    cut_.layers_per_stage = options_.balance();
  } else if (schedule.num_stages == 1 && options_.recompute() != Recompute::kAuto) {
    cut_.layers_per_stage = {num_layers};
  }
  cut_.recompute_by_stage = options_.recompute_by_stage();
  check_recompute(options_, schedule.num_stages);
  cut_.rematerialization = options_.rematerialization();
  check_rematerialization_by_stage(cut_.rematerialization, cut_.layers_per_stage, schedule.num_stages);
  for (const torch::Device& device : options_.devices()) {
    if (!device.is_cpu() && is_searched(options_)) {
      throw InvalidArgument(fmt::format(
          "a schedule is searched, and the device is {}: layers can be profiled on the CPU only; give the plan of a "
          "search (gpipe schedule search --plan) instead",
          device.str()));
    }
    if (!device.is_cpu() && !cut_.is_made()) {
      throw InvalidArgument(
          fmt::format("balance is needed with the device {}: layers can be profiled on the CPU only", device.str()));
    }
  }
}

Fingerprint Engine::describe(const LayerChain& chain) const {
  Fingerprint entries;
  const auto add = [&](const std::string& name, const auto& value) {
    entries.emplace_back(name, fmt::format("{}", value));
  };
  add("gpipe", kVersion);
  add("libtorch", TORCH_VERSION);
  // First what the program says in its own words. Of the options, only those are left out that a rank may have for
  // itself: devices, watchdog_seconds, deferred_weights, peers and what is called.
  for (const std::string& text : options_.agreed_texts()) add(kAgreedText, text);
  add("num_stages", options_.num_stages());
  add("num_micro_batches", options_.num_micro_batches());
  add("schedule", options_.custom_schedule() ? to_csv(*options_.custom_schedule()) : options_.schedule());
  add("search_seconds", options_.search_seconds());
  add("allow_noncanonical", options_.allow_noncanonical());
  add("chunks_per_worker", options_.chunks_per_worker());
  add("recompute", gpipe::name(options_.recompute()));
  for (const Recompute recompute : options_.recompute_by_stage()) add("recompute_by_stage", gpipe::name(recompute));
  for (const Rematerialization& stage : options_.rematerialization()) add("rematerialization", to_text(stage));
  add("optimizer_slots", options_.optimizer_slots());
  add("balance", fmt::format("{}", fmt::join(options_.balance(), ", ")));
  add("seed", options_.seed());
  add("threads_per_stage", options_.threads_per_stage());
  add("loss_reduction", options_.loss_reduction() == LossReduction::kMean ? "mean" : "sum");
  add("replicated_inputs", fmt::format("{}", fmt::join(options_.replicated_inputs(), ", ")));
  add("check_loss", options_.check_loss());
  add("measure_memory", options_.measure_memory());
  add("memory_limit_bytes", options_.memory_limit_bytes());
  for (int layer = 0; layer < chain.size(); ++layer) {
    add(fmt::format("layer {}", layer), chain.name(layer));
    if (chain.is_part(layer))
      add(fmt::format("part {}", layer), fmt::format("{}", fmt::join(chain.weight_names(layer), ", ")));
  }
  for (const TieNames& tie : chain.ties()) {
    add("tie", fmt::format("{} {} = {} {}", tie.user.layer, tie.user.name, tie.owner.layer, tie.owner.name));
  }
  return entries;
}

void Engine::make_split() {
  model_->keep_own([this](int layer) { return runs_layer(layer); });
  split_ = std::make_unique<Split>(*model_, cut_, options_, *group_);
}

void Engine::copy_first_replica() {
  if (group_->world().num_replicas == 1) return;
  Fingerprint names;
  Tensors values;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      names.emplace_back(item.key(), describe_shape(item.value()));
      values.push_back(item.value());
    }
  };
  add(model_->face().named_parameters());
  add(model_->face().named_buffers());
  group_->failing([&] { group_->copy_first_replica(names, values); });
}

std::shared_ptr<StepRecorder> Engine::begin_recording(const std::vector<MicroBatch>& micro_batches) {
  if (!is_recording()) return nullptr;
  Tensors inputs;
  for (const MicroBatch& micro_batch : micro_batches) {
    inputs.insert(inputs.end(), micro_batch.tensors.begin(), micro_batch.tensors.end());
  }
  return recorder_->begin_step(recorded_layers(), inputs);
}

RecordedLayers Engine::recorded_layers() const {
  RecordedLayers recorded;
  recorded.layers = model_->built_layers();
  recorded.stage_of = [this](int layer) { return cut_.stage_of(layer); };
  for (const Tie& tie : model_->ties()) {
    for (const Tie::Use& use : tie.users) recorded.known_leaves.push_back(use.weight);
  }
  return recorded;
}

void Engine::end_recording() const {
  if (recorder_ == nullptr || !calls_.process().is_here() || std::uncaught_exceptions() > 0) return;
  try {
    recorder_->end(recorded_layers());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) the recording ends before its last weights
  }
}

Engine::~Engine() {
  end_recording();
  if (model_ != nullptr) model_->untie();
  if (!calls_.process().is_here()) {
    // Threads that wait here exist in the parent only, and so do the ends of its connections: they are left as they
    // are.
    static_cast<void>(runner_.release());
    static_cast<void>(split_.release());
    static_cast<void>(group_.release());
    return;
  }
  if (has_left_ || std::uncaught_exceptions() > 0 || group_->has_failed()) return;
  try {
    group_->leave(options_.on_late_rank());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) who is left has nothing more to say
  }
}

void Engine::leave() {
  if (std::exchange(has_left_, true)) return;
  group_->leave(options_.on_late_rank());
}

StepCall Engine::make_call(const std::string& name) const {
  if (has_left_) throw CallError(fmt::format("{} was called after leave, when the other ranks may be gone", name));
  StepCall call;
  call.name = name;
  call.step = step_;
  call.training = model_->is_training();
  call.grad_mode = at::GradMode::is_enabled();
  call.idle = runner_->idle();
  return call;
}

MiniBatch Engine::make_batch(StepCall call, const Tensors& inputs, const Tensors* targets,
                             std::vector<MicroBatch>* target_batches) {
  const int count = options_.num_micro_batches();
  const std::vector<int>& replicated = options_.replicated_inputs();
  const bool given = std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.defined(); });
  MiniBatch batch;
  const std::vector<StepCall> of_replica = group_->agree(std::move(call), [&](StepCall& own) {
    if (runs_first()) batch.micro_batches = split_batch(inputs, count, replicated);
    if (targets != nullptr && runs_last()) *target_batches = split_batch(*targets, count, {}, "targets");
    own.input_rows = num_rows(inputs, replicated);
    if (targets != nullptr) own.target_rows = num_rows(*targets);
    if (given) {
      own.requires_grad.emplace();
      for (const at::Tensor& input : inputs) {
        own.requires_grad->push_back(own.needs_grad && input.defined() && input.requires_grad());
      }
    }
    if (!runs_first()) return;
    StepKind kind{static_cast<int>(batch.micro_batches.size()), whole_step(), own.training};
    if (targets == nullptr) kind.mode = own.needs_grad ? StepMode::kApart : StepMode::kForwardOnly;
    if (!runner_->is_prepared(kind)) runner_->make_schedule(kind, cut_);  // throws if there is none
  });
  const int replica = group_->world().replica();
  const StepCall& agreed = of_replica[replica];
  for (int other = 0; other < static_cast<int>(of_replica.size()); ++other) {
    const std::int64_t rows = of_replica[other].input_rows;
    batch.num_samples += rows;
    if (other >= replica) continue;
    batch.first_sample += rows;
    batch.first_micro_batch += static_cast<int>(std::min<std::int64_t>(rows, count));
  }
  if (!runs_first()) batch.micro_batches = split_rows(agreed.input_rows, count);
  if (targets != nullptr && !runs_last()) *target_batches = split_rows(agreed.input_rows, count);
  batch.requires_grad = agreed.requires_grad.value_or(std::vector<bool>());
  batch.needs_grad = agreed.needs_grad;
  batch.idle = agreed.idle;
  return batch;
}

StepMode Engine::whole_step() const {
  const bool is_final = !options_.check_loss() && group_->world().num_replicas == 1;
  return update_ && is_final ? StepMode::kUpdating : StepMode::kTogether;
}

Runner::Lease Engine::lease(const StepKind& kind, const MiniBatch& batch, const StageLoss& loss,
                            const CallerState& caller) {
  const MicroBatch& sample = batch.micro_batches.front();
  model_->relink_ties();
  if (!runner_->is_prepared(kind)) {
    if (split_ == nullptr) cut_by_profile(sample, loss);
    split_->place_layers();
    runner_->prepare(kind, cut_);
    model_->relink_ties();  // the layers may have been placed on devices just now
  }
  if (cut_.skips.count(kind.is_training) == 0) {
    cut_.skips[kind.is_training] = find_skips(parts(), options_, runner_->workers(), caller, sample);
  }
  split_->bring_tied_values();
  return runner_->lease(kind, parts(), batch.idle);
}

void Engine::cut_by_profile(const MicroBatch& sample, const StageLoss& loss) {
  const bool is_alone = group_->world().size == 1;
  if (runs_first() && group_->world().replica() == 0) {
    // Over processes the loss is elsewhere, where the targets are.
    cut_.profile = measure_layers(*model_, options_, runner_->workers(), sample, is_alone ? loss : StageLoss());
    choose_stages(cut_, *model_, options_, is_alone);
  }
  if (!is_alone) {
    // What one rank has measured holds for all.
    Cut chosen = read_cut(group_->gather(to_record(cut_)).front());
    if (chosen.order) check_order(*chosen.order, options_);
    chosen.worker_of_stage = chosen.order ? chosen.order->worker_of_stage : std::move(cut_.worker_of_stage);
    check_balance(chosen.layers_per_stage, model_->num_layers(), chosen.num_stages());
    check_rematerialization_by_stage(chosen.rematerialization, chosen.layers_per_stage, chosen.num_stages());
    cut_ = std::move(chosen);
  }
  if (cut_.order) cut_.worker_of_stage = cut_.order->worker_of_stage;
  make_split();
  copy_first_replica();
  cut_.skips[model_->is_training()] = cut_.profile.skips;
}

Assembly::Parts Engine::parts() const {
  return {*model_, cut_, *split_, *group_, model_->is_training(), options_.deferred_weights()};
}

}  // namespace gpipe::detail
