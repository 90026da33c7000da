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
#include "gpipe/execute/chosen_stages.h"
#include "gpipe/execute/rematerialized_layers.h"
#include "gpipe/execute/skip_trial.h"
#include "gpipe/execute/step_in_flight.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/profiler.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/plan/plan.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/planner.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/peers.h"

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

PipelineImpl::PipelineImpl(const LayerChain& chain, const PipelineOptions& options)
    : options_(checked(options)), ranks_(Ranks::find(options_.peers())) {
  if (ranks_ == nullptr) {
    make(chain);
    return;
  }
  // A rank that refuses tells the others, which would wait for it.
  std::exception_ptr error;
  Fingerprint own = fingerprint(chain);
  try {
    const Fingerprint shapes = make(chain);
    own.insert(own.end(), shapes.begin(), shapes.end());
  } catch (const std::exception& exception) {
    error = std::current_exception();
    own.emplace_back("the error", exception.what());
  }
  try {
    ranks_->peers().compare(own);
  } catch (const FingerprintError&) {
    if (error != nullptr) std::rethrow_exception(error);
    throw;
  }
  if (error != nullptr) std::rethrow_exception(error);
}

Fingerprint PipelineImpl::make(const LayerChain& chain) {
  if (ranks_ != nullptr) ranks_->check_num_workers(options_.num_stages());
  const Schedule schedule = schedule_for(options_, options_.num_micro_batches());
  validate(schedule);
  check_executable(schedule);
  worker_of_stage_ = schedule.worker_of_stage;
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
    if (!device.is_cpu() && ranks_ != nullptr) {
      throw InvalidArgument(
          fmt::format("the device {} cannot be used by several processes yet, which send each other tensors on the CPU "
                      "only; leave devices out",
                      device.str()));
    }
  }
  // Parameters are counted only if they are built after the first account was made.
  if (options_.measure_memory()) const MemoryAccount first("the first of the process");
  std::vector<Layer> built;
  std::vector<std::string> names;
  for (int layer = 0; layer < chain.size(); ++layer) {
    const bool is_needed = runs_layer(layer) || chain.is_built(layer);
    built.push_back(is_needed ? chain.build(layer, options_.seed()) : Layer());
    names.push_back(chain.name(layer));
    layers_.push_back({layer, names.back(), built.back()});
  }
  if (schedule.num_stages > 1) check_not_shared(names, built);
  register_layers();
  const int num_workers = ranks_ == nullptr ? options_.num_stages() : 1;
  prepare_blas(num_workers);
  workers_ = std::make_unique<Workers>(num_workers);
  // The number of intra-op threads is fixed once per thread: kernels then reduce in the same order whatever the caller does.
  // at::get_num_threads forces libtorch's own lazy setting first.
  workers_->run(
      [&](int) {
        at::get_num_threads();
        omp_set_num_threads(options_.threads_per_stage());
      },
      [] {});
  Fingerprint shapes;
  for (int layer = 0; layer < chain.size(); ++layer) {
    if (ranks_ == nullptr || (!layers_per_stage_.empty() && !chain.is_built(layer))) continue;
    for (const auto& parameter : built[layer].module->named_parameters()) {
      shapes.emplace_back(names[layer] + "." + parameter.key(),
                          fmt::format("[{}] of {}", fmt::join(parameter.value().sizes(), ", "),
                                      c10::toString(parameter.value().scalar_type())));
    }
  }
  ties_ = bind_ties(chain.ties(), names, built);  // last, because it changes the layers
  if (!layers_per_stage_.empty()) keep_own_layers();
  return shapes;
}

PipelineImpl::~PipelineImpl() {
  for (const Tie& tie : ties_) untie(tie);
  if (ranks_ == nullptr || std::uncaught_exceptions() > 0 || ranks_->peers().has_failed()) return;
  try {
    ranks_->peers().leave_together();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) who is left has nothing more to say
  }
}

bool PipelineImpl::runs_stage(int stage) const {
  return ranks_ == nullptr || worker_of_stage_[stage] == ranks_->own_worker();
}

bool PipelineImpl::runs_layer(int layer) const { return layers_per_stage_.empty() || runs_stage(stage_of(layer)); }

std::vector<ChainLayer> PipelineImpl::built_layers() const {
  std::vector<ChainLayer> built;
  std::copy_if(layers_.begin(), layers_.end(), std::back_inserter(built),
               [](const ChainLayer& layer) { return layer.layer.module != nullptr; });
  return built;
}

void PipelineImpl::register_layers() {
  for (const auto& child : named_children()) unregister_module(child.key());
  const std::vector<ChainLayer> built = built_layers();
  for (const ChainLayer& layer : built) register_nested(*this, layer.name, layer.layer.module);
  listeners_ = find_listeners(built);
  modes_ = ModuleModes(built);
  buffers_ = ChangingBuffers(built);
}

// Once there are stages. The layers of other ranks are emptied, so that nobody takes their values for trained ones.
void PipelineImpl::keep_own_layers() {
  if (ranks_ == nullptr) return;
  for (Tie& tie : ties_) keep_own(tie, [this](int layer) { return runs_layer(layer); });
  for (ChainLayer& layer : layers_) {
    if (layer.layer.module == nullptr || runs_layer(layer.index)) continue;
    for (at::Tensor& parameter : layer.layer.module->parameters()) {
      parameter.mutable_grad().reset();
      parameter.set_data(at::empty({0}, parameter.options()));
    }
    for (at::Tensor& buffer : layer.layer.module->buffers()) buffer.set_data(at::empty({0}, buffer.options()));
    layer.layer = Layer();
  }
  register_layers();
  std::vector<int> worker_of_layer;
  for (const ChainLayer& layer : layers_) worker_of_layer.push_back(worker_of_stage_[stage_of(layer.index)]);
  if (!ties_.empty()) tied_values_ = std::make_unique<TiedValues>(ties_, worker_of_layer, *ranks_);
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
  if (ranks_ != nullptr) {
    const TrialModel model{layers_, layers_per_stage_, worker_of_stage_, options_.seed()};
    std::vector<SkipProfile> skips;
    const at::ThreadLocalState caller;
    workers_->run(
        [&](int) {
          const at::ThreadLocalStateGuard guard(caller);
          skips = try_skips(model, sample, *ranks_);
        },
        [] {});
    set_skips(is_training(), std::move(skips));
    return;
  }
  set_skips(is_training(), look_at_layers(sample, /*with_seconds=*/false).skips);
}

void PipelineImpl::set_skips(bool training, std::vector<SkipProfile> skips) {
  if (!skips.empty()) {
    for (auto& [key, pool] : pools_) pool.idle.clear();  // they have no routes for them
  }
  skips_[training] = std::move(skips);
}

void PipelineImpl::split_by_profile(const MicroBatch& sample, const StageLoss& loss) {
  if (runs_first()) {
    // Over processes the loss is elsewhere, where the targets are.
    profile_ = measure_layers(sample, ranks_ == nullptr ? loss : StageLoss());
    if (options_.custom_schedule()) {
      const Schedule schedule = schedule_for(options_, options_.num_micro_batches());
      for (const PartitionStage& stage : partition_for(profile_, schedule, {}).stages) {
        layers_per_stage_.push_back(stage.num_layers);
      }
    } else {
      choose_by_profile();
    }
  }
  if (ranks_ != nullptr) {
    // What one rank has measured holds for all.
    std::string text = encode(ChosenStages{layers_per_stage_, recompute_by_stage_, rematerialization_, profile_});
    text = ranks_->exchange().gather(text)[static_cast<std::size_t>(rank_of_stage(0))];
    ChosenStages chosen = decode_chosen_stages(text);
    layers_per_stage_ = std::move(chosen.layers_per_stage);
    recompute_by_stage_ = std::move(chosen.recompute_by_stage);
    rematerialization_ = std::move(chosen.rematerialization);
    profile_ = std::move(chosen.profile);
    keep_own_layers();
  }
  set_skips(is_training(), profile_.skips);
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
    for (const ChainLayer& layer : built_layers()) {
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

std::unique_ptr<Assembly> PipelineImpl::take(Pool& pool, const std::vector<int>& idle) {
  // In a world of several, all ranks take the same: one that none of them holds for a backward to come.
  const auto found = std::find_if(pool.idle.rbegin(), pool.idle.rend(), [&](const auto& assembly) {
    return ranks_ == nullptr || std::count(idle.begin(), idle.end(), assembly->number()) != 0;
  });
  if (found == pool.idle.rend()) {
    const auto known = skips_.find(is_training());
    const std::vector<SkipProfile> skips = known != skips_.end() ? known->second : std::vector<SkipProfile>();
    const std::vector<Rematerialization> rematerialization =
        is_training() ? rematerialization_ : std::vector<Rematerialization>();
    const PartitionedModel model{layers_, layers_per_stage_, skips, ties_, rematerialization, accounts_, streams_};
    return std::make_unique<Assembly>(model, pool.schedule, ranks_.get(), num_assemblies_++);
  }
  std::unique_ptr<Assembly> assembly = std::move(*found);
  pool.idle.erase(std::next(found).base());
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

}  // namespace gpipe
