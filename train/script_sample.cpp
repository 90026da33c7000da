#include "train/script_sample.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "cli/command_line.h"
#include "train/lm_task.h"
#include "train/made_up_data.h"
#include "train/script_model.h"

namespace gpipe::train {
namespace {

Tensors rows_of(const TensorSamples& samples, int num_rows, at::Device device) {
  Tensors rows = samples.rows(at::arange(num_rows, at::kLong).remainder_(samples.num_rows));
  for (at::Tensor& tensor : rows) tensor = tensor.to(device);
  return rows;
}

}  // namespace

void add_script_sample_options(const OptionGroup& group, ScriptSampleOptions& options, CLI::Option* instead) {
  group
      .add("FILE", "--torchscript", options.torchscript, cli::parse_path,
           "A TorchScript file instead, on made-up images or on --inputs")
      ->excludes(instead);
  group.add("FILE", "--inputs", options.inputs, cli::parse_path,
            "What the TorchScript model is given (safetensors), by the names of forward's arguments");
  group.add("FILE", "--targets", options.targets, cli::parse_path, "For its loss (safetensors)");
  group.add_default("NAME", "--loss", options.loss, parse_tensor_loss, "With --targets: cross-entropy or mse");
}

void check_script_sample(const ScriptSampleOptions& options) {
  if (options.torchscript.empty() && !options.inputs.empty()) {
    throw cli::UsageError("--inputs is about --torchscript, and there is none",
                          "add --torchscript FILE, or leave it out");
  }
  if (options.inputs.empty() && !options.targets.empty()) {
    throw cli::UsageError("--targets is about --inputs, and there are none", "add --inputs FILE, or leave it out");
  }
}

ScriptSample::ScriptSample(const ScriptSampleOptions& options) : options_(options) {
  const ScriptModel model(options.torchscript);
  if (options.inputs.empty()) {
    chain_ = model.chain();
    return;
  }
  inputs_ = read_tensor_samples("--inputs", options.inputs);
  if (!options.targets.empty()) {
    targets_ = read_tensor_samples("--targets", options.targets);
    check_as_many("--inputs", *inputs_, "--targets", *targets_);
    check_target(options.loss, only_tensor("--targets", *targets_));
  }
  chain_ = model.chain(inputs_->names());
}

Tensors ScriptSample::inputs(int num_rows, at::Device device) const {
  if (inputs_) return rows_of(*inputs_, num_rows, device);
  if (options_.sequence_length || options_.vocabulary_size) {
    const std::int64_t vocabulary = options_.vocabulary_size.value_or(LmTaskOptions().vocabulary_size);
    return {made_up_ids(vocabulary, {num_rows, options_.sequence_length.value_or(kSequenceLength)}, device)};
  }
  return {made_up_images({num_rows, options_.num_channels, options_.image_size, options_.image_size}, device)};
}

Tensors ScriptSample::targets(int num_rows, at::Device device) const {
  if (targets_) return rows_of(*targets_, num_rows, device);
  return {at::zeros({num_rows}, at::device(device))};
}

at::Tensor ScriptSample::loss(const Tensors& outputs, const Tensors& targets) const {
  return targets_ ? summed_loss(options_.loss, outputs, targets.front()).sum : outputs.front().square().mean();
}

}  // namespace gpipe::train
