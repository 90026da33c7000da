#include "gpipe/execute/pipeline.h"

#include <fmt/format.h>

#include "gpipe/error.h"
#include "gpipe/execute/engine/engine.h"
#include "gpipe/execute/record/program_recording.h"
#include "gpipe/execute/step/calls.h"
#include "gpipe/execute/values/checked_options.h"

namespace gpipe {

PipelineImpl::PipelineImpl(const LayerChain& chain, const PipelineOptions& options)
    : PipelineImpl(chain, options, detail::ProgramRecording::next()) {}

PipelineImpl::PipelineImpl(const LayerChain& chain, const PipelineOptions& options,
                           const detail::ProgramRecording& recording)
    : options_(detail::checked(recording.changed(options, chain.size()))),
      engine_(std::make_unique<detail::Engine>(*this, chain, options_)) {
  if (!recording.is_wanted()) return;
  std::vector<detail::RecordedLayer> layers;
  for (const ChainLayer& layer : engine_->model().layers()) {
    const bool is_built = layer.layer.module != nullptr;
    layers.push_back({layer.name, is_built ? detail::type_name(*layer.layer.module) : ""});
  }
  engine_->set_recorder(recording.recorder(options_, world(), std::move(layers)));
}

PipelineImpl::~PipelineImpl() = default;

StepResult PipelineImpl::train_step(const Tensors& inputs, const Tensors& targets, const Loss& loss) {
  return detail::train_step(*engine_, inputs, targets, loss);
}

Tensors PipelineImpl::forward_tensors(const Tensors& inputs) { return detail::forward(*this, *engine_, inputs); }

at::Tensor PipelineImpl::forward(const at::Tensor& input) {
  const Tensors outputs = forward_tensors({input});
  if (outputs.size() != 1) {
    throw InvalidArgument(
        fmt::format("the model returns {} tensors; call forward_tensors with a std::vector of inputs", outputs.size()));
  }
  return outputs.front();
}

const at::Tensor& PipelineImpl::only(const Tensors& outputs) {
  if (outputs.size() == 1) return outputs.front();
  throw InvalidArgument(fmt::format(
      "the model has {} outputs, but the loss takes one; give inputs and targets as std::vector, and a loss of "
      "(outputs, targets)",
      outputs.size()));
}

int PipelineImpl::num_layers() const { return engine_->model().num_layers(); }

const std::string& PipelineImpl::layer_name(int layer) const { return engine_->model().layers()[layer].name; }

const std::vector<int>& PipelineImpl::layers_per_stage() const { return engine_->cut().layers_per_stage; }

const std::vector<Recompute>& PipelineImpl::recompute_by_stage() const { return engine_->cut().recompute_by_stage; }

const std::vector<Rematerialization>& PipelineImpl::rematerialization() const {
  return engine_->cut().rematerialization;
}

const Profile& PipelineImpl::profile() const { return engine_->cut().profile; }

const Timeline& PipelineImpl::last_timeline() const { return engine_->last_timeline(); }

void PipelineImpl::book(torch::optim::Optimizer& optimizer) {
  const detail::CallLock::Scope lock(engine_->calls(), "book");
  if (engine_->split() != nullptr) engine_->split()->memory().book(optimizer);
}

std::vector<StageMemory> PipelineImpl::memory() const {
  return engine_->split() != nullptr ? engine_->split()->memory().memory() : std::vector<StageMemory>();
}

const World& PipelineImpl::world() const { return engine_->group().world(); }

bool PipelineImpl::runs_layer(int layer) const { return engine_->runs_layer(layer); }

std::int64_t PipelineImpl::step() const { return engine_->step(); }

void PipelineImpl::set_step(std::int64_t step) { engine_->set_step(step); }

void PipelineImpl::leave() {
  const detail::CallLock::Scope lock(engine_->calls(), "leave");
  engine_->leave();
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

void PipelineImpl::train(bool on) {
  Module::train(on);
  engine_->model().train_parts(on);
}

void PipelineImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  check_device(device);
  Module::to(dtype, non_blocking);
}

void PipelineImpl::to(torch::Dtype dtype, bool non_blocking) { Module::to(dtype, non_blocking); }

void PipelineImpl::to(torch::Device device, bool /*non_blocking*/) { check_device(device); }

double clip_grad_norm_(const Pipeline& pipeline, double max_norm, double norm_type) {
  return detail::clip_grad_norm(pipeline->engine(), max_norm, norm_type);
}

}  // namespace gpipe
