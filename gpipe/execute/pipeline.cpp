#include "gpipe/execute/pipeline.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <fmt/format.h>
#include <omp.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "gpipe/error.h"
#include "gpipe/execute/blas.h"
#include "gpipe/execute/rematerialized_layers.h"
#include "gpipe/execute/step_in_flight.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/profiler.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/plan/plan.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/planner.h"

namespace gpipe {
namespace {

PipelineOptions checked(PipelineOptions options) {
  const auto check = [](const char* what, int value) {
    if (value < 1) throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", what, value));
  };
  check("num_stages", options.num_stages());
  check("threads_per_stage", options.threads_per_stage());
  if (options.custom_schedule()) {
    const int count = options.custom_schedule()->num_micro_batches;
    if (options.num_micro_batches() != 0 && options.num_micro_batches() != count) {
      throw InvalidArgument(fmt::format("num_micro_batches is {}, but the schedule is for {}; leave it out",
                                        options.num_micro_batches(), count));
    }
    options.num_micro_batches(count);
  }
  if (options.memory_limit_bytes() < 0) {
    throw InvalidArgument(
        fmt::format("memory_limit_bytes is {}; it must be 0 (no limit) or more", options.memory_limit_bytes()));
  }
  if (options.memory_limit_bytes() > 0) options.measure_memory(true);
  if (options.num_micro_batches() == 0) options.num_micro_batches(4 * options.num_stages());
  check("num_micro_batches", options.num_micro_batches());
  return options;
}

Schedule schedule_for(const PipelineOptions& options, int num_micro_batches) {
  if (!options.custom_schedule()) {
    return gpipe::make_schedule(options.schedule(), options.num_stages(), num_micro_batches,
                                options.chunks_per_worker());
  }
  const Schedule& schedule = *options.custom_schedule();
  if (schedule.num_workers() != options.num_stages()) {
    throw InvalidArgument(fmt::format("the schedule is for {} workers, but num_stages is {}", schedule.num_workers(),
                                      options.num_stages()));
  }
  if (schedule.num_micro_batches != num_micro_batches) {
    throw InvalidArgument(fmt::format(
        "the schedule is for {} micro-batches, but the batch makes {}; drop or fill up such a batch, or use a "
        "schedule by name, which is made for every number",
        schedule.num_micro_batches, num_micro_batches));
  }
  return schedule;
}

void check_balance(const std::vector<int>& balance, int num_layers, int num_stages) {
  if (static_cast<int>(balance.size()) != num_stages) {
    throw InvalidArgument(fmt::format("balance has {} entries, but there are {} stages", balance.size(), num_stages));
  }
  for (const int layers : balance) {
    if (layers < 1) {
      throw InvalidArgument(fmt::format("balance gives a stage {} layers; each needs at least 1", layers));
    }
  }
  const int sum = std::accumulate(balance.begin(), balance.end(), 0);
  if (sum != num_layers) {
    throw InvalidArgument(fmt::format("balance adds up to {} layers, but the model has {}", sum, num_layers));
  }
}

void check_recompute(const PipelineOptions& options, int num_stages) {
  const std::size_t count = options.recompute_by_stage().size();
  if (count != 0 && count != static_cast<std::size_t>(num_stages)) {
    throw InvalidArgument(fmt::format("recompute_by_stage has {} entries, but there are {} stages", count, num_stages));
  }
  if (options.recompute() != Recompute::kAuto) return;
  if (!options.balance().empty() || count != 0 || options.custom_schedule() || !options.rematerialization().empty()) {
    throw InvalidArgument(
        "recompute is kAuto, which chooses layers and recompute for each stage of a schedule by name; leave out "
        "balance, recompute_by_stage, rematerialization and custom_schedule, or say a mode");
  }
}

void check_rematerialization_by_stage(const std::vector<Rematerialization>& by_stage,
                                      const std::vector<int>& layers_per_stage, int num_stages) {
  if (by_stage.empty()) return;
  if (by_stage.size() != static_cast<std::size_t>(num_stages)) {
    throw InvalidArgument(
        fmt::format("rematerialization has {} entries, but there are {} stages", by_stage.size(), num_stages));
  }
  if (layers_per_stage.empty()) {
    throw InvalidArgument("rematerialization names layers of stages, which are not known yet; give balance, too");
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    try {
      check_rematerialization(by_stage[stage], layers_per_stage[stage]);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("rematerialization of stage {}, which has {} layer{}: {}", stage,
                                        layers_per_stage[stage], layers_per_stage[stage] == 1 ? "" : "s",
                                        error.what()));
    }
  }
}

std::string describe(const Schedule& schedule) {
  return schedule.name.empty() ? "the custom schedule" : fmt::format("schedule \"{}\"", schedule.name);
}

void check_executable(const Schedule& schedule) {
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind != ActionKind::kInputGrad && action.kind != ActionKind::kWeightGrad) continue;
      throw InvalidArgument(
          fmt::format("{} splits the backward, which can be proven and simulated, but not executed yet; use gpipe, "
                      "1f1b, interleaved or looped-bfs",
                      describe(schedule)));
    }
  }
}

// The forwards of so many micro-batches, on the same workers: each worker in the order of the micro-batches, and of the
// stages for each of them.
Schedule forwards_of(const Schedule& schedule, int num_micro_batches) {
  Schedule forwards = schedule;
  forwards.num_micro_batches = num_micro_batches;
  for (auto& actions : forwards.workers) actions.clear();
  for (int micro_batch = 0; micro_batch < num_micro_batches; ++micro_batch) {
    for (int stage = 0; stage < schedule.num_stages; ++stage) {
      forwards.workers[schedule.worker_of_stage[stage]].push_back({ActionKind::kForward, stage, micro_batch});
    }
  }
  return forwards;
}

void put_forwards_first(Schedule& schedule) {
  for (auto& actions : schedule.workers) {
    std::stable_partition(actions.begin(), actions.end(),
                          [](const Action& action) { return action.kind == ActionKind::kForward; });
  }
}

// "layer1.0.conv1" becomes the child "conv1" of the child "0" of the child "layer1" of `parent`.
void register_nested(torch::nn::Module& parent, const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) {
    parent.register_module(name, std::move(module));
    return;
  }
  const std::string outer = name.substr(0, dot);
  const auto children = parent.named_children();
  const auto* existing = children.find(outer);
  const auto child =
      existing != nullptr ? *existing : parent.register_module(outer, std::make_shared<torch::nn::Module>());
  register_nested(*child, name.substr(dot + 1), std::move(module));
}

}  // namespace

PipelineOptions::PipelineOptions(const Plan& plan)
    : num_stages_(static_cast<int>(plan.layers_per_stage.size()) / plan.chunks) {
  num_micro_batches_ = plan.num_micro_batches;
  schedule_ = plan.schedule;
  chunks_per_worker_ = plan.chunks;
  recompute_ = plan.recompute_by_stage.empty() ? plan.recompute : Recompute::kNever;
  recompute_by_stage_ = plan.recompute_by_stage;
  balance_ = plan.layers_per_stage;
  rematerialization_ = plan.rematerialization;
}

PipelineImpl::PipelineImpl(const LayerChain& chain, const PipelineOptions& options) : options_(checked(options)) {
  const Schedule schedule = schedule_for(options_, options_.num_micro_batches());
  validate(schedule);
  check_executable(schedule);
  if (chain.size() == 0) throw InvalidArgument("the model has no layers");
  if (schedule.num_stages > chain.size()) {
    const int chunks = schedule.num_stages / schedule.num_workers();
    throw InvalidArgument(
        fmt::format("{} stages{} for {} layers; each stage needs a layer: lower num_stages{}", schedule.num_stages,
                    chunks > 1 ? fmt::format(" ({} workers x {} chunks)", schedule.num_workers(), chunks) : "",
                    chain.size(), chunks > 1 ? " or chunks_per_worker" : ""));
  }
  if (!options_.balance().empty()) {
    check_balance(options_.balance(), chain.size(), schedule.num_stages);
    layers_per_stage_ = options_.balance();
  } else if (schedule.num_stages == 1 && options_.recompute() != Recompute::kAuto) {
    layers_per_stage_ = {chain.size()};
  }
  recompute_by_stage_ = options_.recompute_by_stage();
  check_recompute(options_, schedule.num_stages);
  rematerialization_ = options_.rematerialization();
  check_rematerialization_by_stage(rematerialization_, layers_per_stage_, schedule.num_stages);
  for (const torch::Device& device : options_.devices()) {
    if (!device.is_cpu() && layers_per_stage_.empty()) {
      throw InvalidArgument(
          fmt::format("balance is needed with the device {}: layers can be profiled on the CPU only", device.str()));
    }
  }
  // Parameters are counted only if they are built after the first account was made.
  if (options_.measure_memory()) const MemoryAccount first("the first of the process");
  std::vector<Layer> built;
  std::vector<std::string> names;
  for (int layer = 0; layer < chain.size(); ++layer) {
    built.push_back(chain.build(layer, options_.seed()));
    names.push_back(chain.name(layer));
    layers_.push_back({layer, names.back(), built.back()});
  }
  if (schedule.num_stages > 1) check_not_shared(names, built);
  for (const ChainLayer& layer : layers_) register_nested(*this, layer.name, layer.layer.module);
  listeners_ = find_listeners(layers_);
  modes_ = ModuleModes(layers_);
  buffers_ = ChangingBuffers(layers_);
  prepare_blas(options_.num_stages());
  workers_ = std::make_unique<Workers>(options_.num_stages());
  // The number of intra-op threads is fixed once per thread: kernels then reduce in the same order whatever the caller does.
  // at::get_num_threads forces libtorch's own lazy setting first.
  workers_->run(
      [&](int) {
        at::get_num_threads();
        omp_set_num_threads(options_.threads_per_stage());
      },
      [] {});
  ties_ = bind_ties(chain.ties(), names, built);  // last, because it changes the layers
}

PipelineImpl::~PipelineImpl() {
  for (const Tie& tie : ties_) untie(tie);
}

int PipelineImpl::stage_of(int layer) const {
  int stage = 0;
  for (const int count : layers_per_stage_) {
    if (layer < count) return stage;
    layer -= count;
    ++stage;
  }
  return 0;
}

Profile PipelineImpl::measure_layers(const MicroBatch& sample, const StageLoss& loss) {
  bool in_loss = false;
  if (loss) {
    // What it throws, the step itself will throw, and say more about it.
    const StageLoss tried = [&](int micro_batch, const Tensors& outputs) {
      in_loss = true;
      return loss(micro_batch, outputs);
    };
    try {
      return look_at_layers(sample, /*with_seconds=*/true, tried);
    } catch (const ActionError&) {
      if (!in_loss) throw;
    }
  }
  return look_at_layers(sample, /*with_seconds=*/true);
}

Profile PipelineImpl::look_at_layers(const MicroBatch& sample, bool with_seconds, const StageLoss& loss) {
  LayerSource source;
  for (const ChainLayer& layer : layers_) source.names.push_back(layer.name);
  source.layer = [this](int layer) { return layers_[layer]; };
  ProfileOptions options;
  options.seed = options_.seed();
  options.repeats = 3;
  options.budget_seconds = 2;
  options.count_bytes = options_.measure_memory() || options_.recompute() == Recompute::kAuto;
  if (loss) {
    options.loss = [&](const Tensors& outputs) {
      LayerRun run;
      run.seed = options_.seed();
      run.layer = num_layers();
      const LayerScope scope(run);
      return loss(0, outputs);
    };
  }
  Profile profile;
  const at::ThreadLocalState caller;
  const auto run = [&](int worker) {
    if (worker != 0) return;
    const at::ThreadLocalStateGuard guard(caller);
    ProfilerPosition at;
    try {
      profile =
          with_seconds ? profile_layers(source, sample, options, at) : trace_layers(source, sample, options.seed, at);
    } catch (const SkipError&) {
      throw;
    } catch (...) {
      const Action action{at.in_backward ? ActionKind::kBackward : ActionKind::kForward, stage_of(at.layer), 0};
      const ChainLayer& layer = layers_[at.layer];
      throw_action_error(worker, action,
                         fmt::format("layer {} ({}){}, in a trial run before the first step", at.layer, layer.name,
                                     at.given.describe(*layer.layer.module)));
    }
  };
  workers_->run(run, [] {});
  return profile;
}

void PipelineImpl::trace_skips(const MicroBatch& sample) {
  set_skips(is_training(), look_at_layers(sample, /*with_seconds=*/false).skips);
}

void PipelineImpl::set_skips(bool training, std::vector<SkipProfile> skips) {
  if (!skips.empty()) {
    for (auto& [key, pool] : pools_) pool.idle.clear();  // they have no routes for them
  }
  skips_[training] = std::move(skips);
}

void PipelineImpl::split_by_profile(const MicroBatch& sample, const StageLoss& loss) {
  profile_ = measure_layers(sample, loss);
  set_skips(is_training(), profile_.skips);
  if (!options_.custom_schedule()) return choose_by_profile();
  const Schedule schedule = schedule_for(options_, options_.num_micro_batches());
  for (const PartitionStage& stage : partition_for(profile_, schedule, {}).stages) {
    layers_per_stage_.push_back(stage.num_layers);
  }
}

void PipelineImpl::choose_by_profile() {
  PlanOptions options;
  options.num_stages = options_.num_stages();
  options.num_micro_batches = options_.num_micro_batches();
  options.schedule = options_.schedule();
  options.chunks = options_.chunks_per_worker();
  options.recompute = options_.recompute();
  options.recompute_by_stage = options_.recompute_by_stage();
  options.optimizer_slots = options_.optimizer_slots();
  if (options_.memory_limit_bytes() > 0) options.memory_limit_bytes = options_.memory_limit_bytes();
  options.rematerialize = !share_a_parameter(layers_);
  const bool leaves_recompute = options.recompute == Recompute::kAuto;
  Plan chosen;
  try {
    chosen = plan(profile_, options);
  } catch (const InfeasibleError&) {
    if (leaves_recompute) throw;
    options.memory_limit_bytes.reset();  // a prediction: the step itself will show whether it fits
    chosen = plan(profile_, options);
  }
  layers_per_stage_ = chosen.layers_per_stage;
  if (!leaves_recompute) return;
  rematerialization_ = chosen.rematerialization;
  recompute_by_stage_ = chosen.recompute_by_stage;
  if (recompute_by_stage_.empty()) recompute_by_stage_.assign(layers_per_stage_.size(), chosen.recompute);
}

// On the devices and accounts of their stages, once there are stages.
void PipelineImpl::place_layers() {
  if (streams_.empty()) {
    for (std::size_t stage = 0; stage < layers_per_stage_.size() && !options_.devices().empty(); ++stage) {
      streams_.push_back(std::make_shared<StageStream>(options_.devices()[stage % options_.devices().size()]));
    }
    for (const ChainLayer& layer : layers_) {
      if (streams_.empty()) break;
      layer.layer.module->to(streams_[stage_of(layer.index)]->device());
    }
  }
  for (const Tie& tie : ties_) {
    for (const Tie::Use& user : tie.users) {
      if (streams_.empty()) break;
      const auto device_of = [&](int layer) { return streams_[stage_of(layer)]->device(); };
      if (device_of(tie.owner.layer) == device_of(user.layer)) continue;
      throw InvalidArgument(
          fmt::format("layers \"{}\" and \"{}\" are tied, but on the devices {} and {}; a tied weight has to "
                      "be on one device",
                      layers_[tie.owner.layer].name, layers_[user.layer].name, device_of(tie.owner.layer).str(),
                      device_of(user.layer).str()));
    }
  }
  if (options_.measure_memory()) book_layers();
}

Schedule PipelineImpl::make_schedule(int num_micro_batches, StepMode mode) const {
  if (mode == StepMode::kForwardOnly)
    return forwards_of(schedule_for(options_, options_.num_micro_batches()), num_micro_batches);
  Schedule schedule = schedule_for(options_, num_micro_batches);
  if (!schedule.has_backward()) {
    throw InvalidArgument(fmt::format("{} has no backward; call forward without gradient instead", describe(schedule)));
  }
  if (mode == StepMode::kApart) put_forwards_first(schedule);
  if (!recompute_by_stage_.empty() && is_training()) return with_recompute(std::move(schedule), recompute_by_stage_);
  if (options_.custom_schedule() && options_.recompute() == Recompute::kNever && is_training()) return schedule;
  const bool has_a_mode = is_training() && options_.recompute() != Recompute::kAuto;
  return with_recompute(std::move(schedule), has_a_mode ? options_.recompute() : Recompute::kNever);
}

PipelineImpl::Pool& PipelineImpl::pool(const std::vector<MicroBatch>& micro_batches, StepMode mode,
                                       const StageLoss& loss) {
  const int count = static_cast<int>(micro_batches.size());
  const auto key = std::make_tuple(count, mode, is_training());
  const auto found = pools_.find(key);
  if (found != pools_.end()) return found->second;
  if (layers_per_stage_.empty()) {
    make_schedule(count, mode);  // throws if there is none, before the layers are run
    split_by_profile(micro_batches.front(), loss);
  }
  Pool made;
  made.schedule = make_schedule(count, mode);
  place_layers();
  return pools_.emplace(key, std::move(made)).first->second;
}

std::unique_ptr<Assembly> PipelineImpl::take(Pool& pool) {
  if (pool.idle.empty()) {
    const auto known = skips_.find(is_training());
    const std::vector<SkipProfile> skips = known != skips_.end() ? known->second : std::vector<SkipProfile>();
    const std::vector<Rematerialization> rematerialization =
        is_training() ? rematerialization_ : std::vector<Rematerialization>();
    const PartitionedModel model{layers_, layers_per_stage_, skips, ties_, rematerialization, accounts_, streams_};
    return std::make_unique<Assembly>(model, pool.schedule);
  }
  std::unique_ptr<Assembly> assembly = std::move(pool.idle.back());
  pool.idle.pop_back();
  return assembly;
}

void PipelineImpl::check_device(torch::Device device) const {
  for (const at::Tensor& parameter : parameters()) {
    if (parameter.device() == device) continue;
    throw InvalidArgument(fmt::format("a pipeline cannot be moved from {} to {}: its stages are placed when it is made",
                                      parameter.device().str(), device.str()));
  }
}

void PipelineImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  check_device(device);
  Module::to(dtype, non_blocking);
}

void PipelineImpl::to(torch::Dtype dtype, bool non_blocking) { Module::to(dtype, non_blocking); }

void PipelineImpl::to(torch::Device device, bool /*non_blocking*/) { check_device(device); }

double clip_grad_norm_(const Pipeline& pipeline, double max_norm, double norm_type) {
  return torch::nn::utils::clip_grad_norm_(pipeline->parameters(), max_norm, norm_type);
}

}  // namespace gpipe
