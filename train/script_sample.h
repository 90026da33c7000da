// ScriptSample: a TorchScript model with micro-batches to run it on, from files or made up: for measurements.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "gpipe/gpipe.h"
#include "train/option_group.h"
#include "train/tensor_loss.h"
#include "train/tensor_samples.h"

namespace gpipe::train {

struct ScriptSampleOptions {
  std::string torchscript;  // empty: there is none
  std::string inputs;       // empty: made-up images, or token ids if something is said about them
  std::string targets;      // empty: no loss but one that costs next to nothing
  TensorLoss loss = TensorLoss::kCrossEntropy;
  int image_size = 32;
  int num_channels = 3;
  std::optional<int> sequence_length;
  std::optional<std::int64_t> vocabulary_size;
};

// Of a text about which nothing is said.
constexpr int kSequenceLength = 128;

// --torchscript, --inputs, --targets and --loss; the model is then not that of `instead`.
void add_script_sample_options(const OptionGroup& group, ScriptSampleOptions& options, CLI::Option* instead);

// Throws UsageError for options without the one that they belong to.
void check_script_sample(const ScriptSampleOptions& options);

class ScriptSample {
 public:
  // Throws as ScriptModel::chain and read_tensor_samples do. REQUIRES: there is a TorchScript file.
  explicit ScriptSample(const ScriptSampleOptions& options);

  const LayerChain& chain() const { return chain_; }
  // So many rows; those of a file begin again at its end. Targets that there are none of are zeros.
  Tensors inputs(int num_rows, at::Device device) const;
  Tensors targets(int num_rows, at::Device device) const;
  at::Tensor loss(const Tensors& outputs, const Tensors& targets) const;

 private:
  const ScriptSampleOptions options_;
  std::optional<TensorSamples> inputs_;
  std::optional<TensorSamples> targets_;
  LayerChain chain_;
};

}  // namespace gpipe::train
