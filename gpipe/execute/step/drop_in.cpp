// The drop-in forward: a custom autograd function whose backward runs the pipeline's backward actions.
#include <fmt/format.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

#include <optional>

#include "gpipe/error.h"
#include "gpipe/execute/step/calls.h"
#include "gpipe/execute/step/step.h"
#include "gpipe/execute/values/checked_options.h"
#include "gpipe/transport/stage_stream.h"

namespace gpipe::detail {
namespace {

// Row by row, in the order of the micro-batches.
Tensors concatenate(const std::vector<Tensors>& by_micro_batch) {
  Tensors whole;
  for (std::size_t index = 0; index < by_micro_batch.front().size(); ++index) {
    Tensors parts;
    for (const Tensors& tensors : by_micro_batch) {
      if (tensors[index].defined()) parts.push_back(tensors[index]);
    }
    if (!parts.empty() && parts.front().dim() == 0) {
      throw InvalidArgument(fmt::format(
          "output {} of the model is a scalar for each micro-batch; compute it in train_step's loss instead", index));
    }
    whole.push_back(parts.empty() ? at::Tensor() : at::cat(parts, 0));
  }
  return whole;
}

// By micro-batch and output; an output may have another number of rows than the input had.
using NumRows = std::vector<std::vector<std::int64_t>>;

NumRows num_rows(const std::vector<Tensors>& outputs) {
  NumRows rows;
  for (const Tensors& tensors : outputs) {
    rows.emplace_back();
    for (const at::Tensor& tensor : tensors) rows.back().push_back(tensor.defined() ? tensor.size(0) : 0);
  }
  return rows;
}

// The rows of each micro-batch.
std::vector<Tensors> split(const Tensors& whole, const NumRows& num_rows) {
  std::vector<Tensors> parts(num_rows.size());
  for (std::size_t index = 0; index < whole.size(); ++index) {
    std::int64_t first = 0;
    for (std::size_t m = 0; m < num_rows.size(); ++m) {
      const std::int64_t rows = num_rows[m][index];
      parts[m].push_back(whole[index].defined() ? whole[index].narrow(0, first, rows) : at::Tensor());
      first += rows;
    }
  }
  return parts;
}

// Keeps a step alive between forward and backward, with what autograd does not know of its inputs and outputs.
struct StepHolder : torch::CustomClassHolder {
  std::shared_ptr<torch::nn::Module> face;  // whose engine outlives the step
  std::unique_ptr<Step> step;
  std::vector<std::size_t> input_positions;                // of the inputs that are there
  std::vector<c10::Device> input_devices;                  // of those
  std::vector<std::optional<c10::Device>> output_devices;  // nothing for an output that is not there
  NumRows rows;                                            // where the last stage is
};

// Of the whole mini-batch.
struct Outputs {
  Tensors tensors;
  std::vector<bool> requires_grad;
  std::vector<c10::Device> devices;  // where they belong; from another rank they come to the CPU
  NumRows rows;                      // where the last stage is
};

// After a forward. On all ranks.
Outputs take_outputs(Step& step) {
  Outputs outputs;
  Tensors sent;
  if (step.last() != nullptr) {
    const std::vector<Tensors> results = step.last()->take_results();
    sent = step.engine().group().failing([&] { return concatenate(results); });
    outputs.rows = num_rows(results);
    const std::vector<bool>& flags = step.last()->result_requires_grad();
    sent.push_back(at::tensor(std::vector<std::uint8_t>(flags.begin(), flags.begin() + sent.size()), at::kByte));
  }
  outputs.tensors = step.from_last(std::move(sent));
  const at::Tensor flags = outputs.tensors.back();
  outputs.tensors.pop_back();
  outputs.requires_grad.assign(flags.data_ptr<std::uint8_t>(), flags.data_ptr<std::uint8_t>() + flags.numel());
  for (const at::Tensor& tensor : outputs.tensors) {
    const c10::Device here = tensor.defined() ? tensor.device() : c10::Device(c10::kCPU);
    const auto named = device_of_stage(step.engine().options(), step.schedule().num_stages - 1);
    outputs.devices.push_back(step.last() == nullptr ? named.value_or(here) : here);
  }
  return outputs;
}

void run(Step& step, Phase phase) {
  StepResult result;
  result.timeline = step.run(phase);
  step.share(result);
}

// What a forward is called with besides its tensors.
struct Call {
  Engine& engine;
  MiniBatch batch;
  c10::intrusive_ptr<StepHolder> holder;
};

// Autograd sees outputs on the CPU only, so that it calls the backward in the thread that asked for it. For a gradient
// on another device it would take that device's own thread, which the stages' backwards need.
struct PipelineFunction : torch::autograd::Function<PipelineFunction> {
  // `phony` requires a gradient, so that the outputs do even if no input does.
  // Undefined inputs and outputs are left out, which autograd could not wrap.
  static Tensors forward(torch::autograd::AutogradContext* context, const at::Tensor& /*phony*/, Call* call,
                         at::TensorList inputs) {
    StepHolder* const holder = call->holder.get();
    holder->step = std::make_unique<Step>(call->engine, std::move(call->batch), StepMode::kApart);
    run(*holder->step, Phase::kForward);
    Outputs made = take_outputs(*holder->step);
    holder->rows = std::move(made.rows);
    Tensors outputs;
    Tensors without_grad;
    for (std::size_t index = 0; index < made.tensors.size(); ++index) {
      const at::Tensor output = on_host(made.tensors[index]);
      holder->output_devices.push_back(output.defined() ? std::optional(made.devices[index]) : std::nullopt);
      if (!output.defined()) continue;
      outputs.push_back(output);
      if (!made.requires_grad[index]) without_grad.push_back(output);
    }
    for (const at::Tensor& input : inputs) holder->input_devices.push_back(input.device());
    context->saved_data["step"] = c10::IValue::make_capsule(call->holder);
    context->mark_non_differentiable(without_grad);
    return outputs;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, Tensors grads) {
    auto holder = c10::static_intrusive_pointer_cast<StepHolder>(context->saved_data["step"].toCapsule());
    if (!holder->step) {
      throw Error("backward through this pipeline output was called a second time; call forward again first");
    }
    if (at::GradMode::is_enabled()) {
      throw Error("a pipeline's backward cannot be differentiated again; call backward without create_graph");
    }
    const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
    if (wanted != nullptr && !wanted->empty()) {
      throw Error(
          "autograd::grad does not go through a pipeline, whose stages add to the gradients of their parameters; call "
          "backward, and read the input's grad");
    }
    const CallLock::Scope lock(holder->step->engine().calls(), "backward");
    const std::unique_ptr<Step> step = std::move(holder->step);
    step->agree_on_backward();
    Tensors whole;
    std::size_t next = 0;
    for (const auto& device : holder->output_devices) {
      whole.push_back(device ? std::move(grads[next++]) : at::Tensor());
    }
    if (step->last() != nullptr) step->last()->set_output_grads(split(whole, holder->rows));
    run(*step, Phase::kBackward);
    Tensors grads_of_inputs = step->input_grads();
    step->finish_recording({}, grads_of_inputs);
    Tensors result(2);  // of the phony and the call
    for (std::size_t index = 0; index < holder->input_positions.size(); ++index) {
      const at::Tensor& grad = grads_of_inputs[holder->input_positions[index]];
      result.push_back(grad.defined() ? grad.to(holder->input_devices[index]) : grad);
    }
    return result;
  }
};

}  // namespace

Tensors forward(torch::nn::Module& face, Engine& engine, const Tensors& inputs) {
  const CallLock::Scope lock(engine.calls(), "forward");
  StepCall step_call = engine.make_call("forward");
  if (at::GradMode::is_enabled()) {
    for (const at::Tensor& input : inputs) step_call.needs_grad |= input.defined() && input.requires_grad();
    for (const at::Tensor& parameter : face.parameters()) step_call.needs_grad |= parameter.requires_grad();
  }
  MiniBatch batch = engine.make_batch(std::move(step_call), inputs, nullptr, nullptr);
  if (!batch.needs_grad) {
    Step step(engine, std::move(batch), StepMode::kForwardOnly);
    run(step, Phase::kAll);
    Outputs outputs = take_outputs(step);
    for (std::size_t index = 0; index < outputs.tensors.size(); ++index) {
      at::Tensor& output = outputs.tensors[index];
      if (output.defined()) output = output.to(outputs.devices[index]);
    }
    return std::move(outputs.tensors);
  }
  Tensors given;
  Call call{engine, std::move(batch), c10::make_intrusive<StepHolder>()};
  call.holder->face = face.shared_from_this();
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    if (!inputs[index].defined()) continue;
    given.push_back(inputs[index]);
    call.holder->input_positions.push_back(index);
  }
  Tensors made = PipelineFunction::apply(torch::zeros({}, torch::requires_grad()), &call, at::TensorList(given));
  Tensors outputs;
  std::size_t next = 0;
  for (const auto& device : call.holder->output_devices) {
    outputs.push_back(device ? made[next++].to(*device) : at::Tensor());
  }
  return outputs;
}

}  // namespace gpipe::detail
