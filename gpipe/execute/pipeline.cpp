#include "gpipe/execute/pipeline.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>
#include <torch/torch.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/blas.h"
#include "gpipe/execute/gradient_reducer.h"
#include "gpipe/execute/pipeline_options.h"
#include "gpipe/execute/step_in_flight.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/os/processors.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/transport/c10d/peers.h"

namespace gpipe {
namespace {

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

// Takes something away from its owner without ending it.
template <typename Value>
void leave_to_parent(Value&& value) {
  static_cast<void>(new std::decay_t<Value>(std::forward<Value>(value)));  // never deleted
}

}  // namespace

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
  if (ranks_->replicas() != nullptr) reducer_ = std::make_unique<GradientReducer>(*ranks_->replicas());
  if (!layers_per_stage_.empty()) copy_first_replica();
}

Fingerprint PipelineImpl::make(const LayerChain& chain) {
  if (ranks_ != nullptr) ranks_->check_num_workers(options_.num_stages());
  const Schedule schedule = schedule_for(options_, options_.num_micro_batches());
  const Certificate certificate = validate(schedule);
  check_executable(schedule);
  check_canonical(options_, schedule, certificate);
  const int num_workers = ranks_ == nullptr ? options_.num_stages() : 1;
  if (options_.threads_per_stage() > 1) {
    check_threads(fmt::format("threads_per_stage {} x {} stages", options_.threads_per_stage(), num_workers),
                  std::int64_t{options_.threads_per_stage()} * num_workers);
  }
  worker_of_stage_ = schedule.worker_of_stage;
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    const std::optional<torch::Device> device = device_of_stage(options_, stage);
    if (device && runs_stage(stage)) check_device_is_there(*device);
  }
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
    const bool is_needed = runs_layer(layer) || chain.is_built(layer);
    built.push_back(is_needed ? chain.build(layer, options_.seed()) : Layer());
    names.push_back(chain.name(layer));
    layers_.push_back({layer, names.back(), built.back()});
  }
  if (schedule.num_stages > 1) check_not_shared(names, built);
  register_layers();
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
  if (!calls_.process().is_here()) {
    // Threads that wait here exist in the parent only, and so do the ends of its connections: they are left as they
    // are.
    leave_to_parent(std::move(workers_));
    leave_to_parent(std::move(pools_));
    leave_to_parent(std::move(reducer_));
    leave_to_parent(std::move(tied_values_));
    leave_to_parent(std::move(ranks_));
    return;
  }
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

// On the devices and accounts of their stages, once there are stages.
void PipelineImpl::place_layers() {
  if (streams_.empty()) {
    for (int stage = 0; stage < static_cast<int>(layers_per_stage_.size()); ++stage) {
      const std::optional<torch::Device> device = device_of_stage(options_, stage);
      if (!device) break;
      streams_.push_back(runs_stage(stage) ? std::make_shared<StageStream>(*device) : nullptr);
    }
    for (const ChainLayer& layer : built_layers()) {
      if (streams_.empty()) break;
      layer.layer.module->to(streams_[stage_of(layer.index)]->device());
    }
  }
  for (const Tie& tie : ties_) {
    for (const Tie::Use& user : tie.users) {
      if (streams_.empty()) break;
      const auto device_of = [&](int layer) { return *device_of_stage(options_, stage_of(layer)); };
      if (tie.owner.module == nullptr &&
          user.module != nullptr) {  // the owner is another rank's, which sends its values
        at::Tensor weight = user.weight;
        if (weight.device() != device_of(user.layer)) weight.set_data(weight.detach().to(device_of(user.layer)));
        continue;
      }
      if (user.module == nullptr || device_of(tie.owner.layer) == device_of(user.layer)) continue;
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

std::shared_ptr<torch::nn::Module> PipelineImpl::clone(const c10::optional<torch::Device>& /*device*/) const {
  throw InvalidArgument(
      "a pipeline cannot be cloned, because its stages run on threads or processes of their own; clone the model "
      "before it is made a pipeline, or make a second pipeline and copy the weights (save_weights, load_weights)");
}

void PipelineImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("gpipe::Pipeline(num_stages={}, num_micro_batches={}, schedule={})", options_.num_stages(),
                        options_.num_micro_batches(), options_.custom_schedule() ? "custom" : options_.schedule());
}

void PipelineImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  check_device(device);
  Module::to(dtype, non_blocking);
}

void PipelineImpl::to(torch::Dtype dtype, bool non_blocking) { Module::to(dtype, non_blocking); }

void PipelineImpl::to(torch::Device device, bool /*non_blocking*/) { check_device(device); }

}  // namespace gpipe
