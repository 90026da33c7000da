// Tensors from files: any TorchScript module, its arguments and its targets as rows of safetensors files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/script_model.h"
#include "train/task.h"
#include "train/tensor_loss.h"
#include "train/tensor_samples.h"

namespace gpipe::train {

struct TensorTaskOptions {
  std::string torchscript;
  bool deferred_batch_norm = false;
  std::string inputs;
  std::string targets;
  std::string test_inputs;  // empty: there is no evaluation
  std::string test_targets;
  TensorLoss loss = TensorLoss::kCrossEntropy;
  std::int64_t batch_size = 32;
  std::uint64_t seed = 0;
};

class TensorTask : public Task {
 public:
  // Reads the files: throws as read_tensor_samples, check_target and ScriptModel do. Without `inputs` and `targets`
  // there are no batches.
  explicit TensorTask(const TensorTaskOptions& options);

  LayerChain chain() const override;
  const char* unit() const override { return "samples"; }
  std::string data_hash() const override;
  std::string test_hash() const override;
  std::vector<std::string> agreed_texts() const override { return {model_.agreed_text()}; }
  PipelineImpl::Loss loss() const override;
  std::vector<Measure> evaluate(Pipeline& pipeline, bool is_last, const GoesOn& goes_on) override;
  std::map<std::string, std::string> metadata() const override;

 private:
  struct Samples {
    TensorSamples inputs;
    TensorSamples targets;
  };
  // Nothing if no files are named.
  static std::optional<Samples> read(const std::string& prefix, const std::string& inputs, const std::string& targets,
                                     TensorLoss loss);
  static std::string hash_of(const std::optional<Samples>& samples);
  TensorBatch to_tensors(const data::Batch& batch) const override;

  const TensorTaskOptions options_;
  const ScriptModel model_;
  const std::optional<Samples> training_;
  const std::optional<Samples> test_;
};

}  // namespace gpipe::train
