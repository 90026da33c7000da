#include "train/tensor_task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>

#include "train/agreed_options.h"

namespace gpipe::train {

TensorTask::TensorTask(const TensorTaskOptions& options)
    : options_(options),
      model_(options.torchscript),
      training_(read("--", options.inputs, options.targets, options.loss)),
      test_(read("--test-", options.test_inputs, options.test_targets, options.loss)) {
  if (training_ && test_ && training_->inputs.names() != test_->inputs.names()) {
    throw InvalidArgument(fmt::format(
        "--inputs {} has the tensors {}, but --test-inputs {} has {}; give both the same names", training_->inputs.path,
        fmt::join(training_->inputs.names(), ", "), test_->inputs.path, fmt::join(test_->inputs.names(), ", ")));
  }
  if (!training_) return;
  data::BatchOptions batching;
  batching.seed = options_.seed;
  batching.drop_last = training_->inputs.num_rows >= options_.batch_size;
  batches_.emplace(training_->inputs.num_rows, options_.batch_size, batching);
}

std::optional<TensorTask::Samples> TensorTask::read(const std::string& prefix, const std::string& inputs,
                                                    const std::string& targets, TensorLoss loss) {
  if (inputs.empty()) return std::nullopt;
  const std::string inputs_option = prefix + "inputs";
  const std::string targets_option = prefix + "targets";
  Samples samples{read_tensor_samples(inputs_option, inputs), read_tensor_samples(targets_option, targets)};
  check_as_many(inputs_option, samples.inputs, targets_option, samples.targets);
  check_target(loss, only_tensor(targets_option, samples.targets));
  return samples;
}

LayerChain TensorTask::chain() const {
  return model_.chain((training_ ? training_ : test_)->inputs.names(), options_.deferred_batch_norm);
}

std::string TensorTask::hash_of(const std::optional<Samples>& samples) {
  if (!samples) return "none";
  return hash_of_tensors(samples->inputs.tensors) + " " + hash_of_tensors(samples->targets.tensors);
}

std::string TensorTask::data_hash() const { return hash_of(training_); }

std::string TensorTask::test_hash() const { return hash_of(test_); }

TensorBatch TensorTask::to_tensors(const data::Batch& batch) const {
  const at::Tensor samples = at::tensor(batch.samples, at::kLong);
  return {training_->inputs.rows(samples), training_->targets.rows(samples), samples.numel(), {}, {}};
}

PipelineImpl::Loss TensorTask::loss() const {
  return [loss = options_.loss](const Tensors& outputs, const Tensors& targets) {
    const SummedLoss summed = summed_loss(loss, outputs, targets.front());
    return LossValue(summed.sum, summed.count);
  };
}

std::vector<Measure> TensorTask::evaluate(Pipeline& pipeline, bool /*is_last*/, const GoesOn& goes_on) {
  if (!test_) return {};
  double sum = 0;
  std::int64_t count = 0;
  std::int64_t num_right = 0;
  const std::int64_t num_rows = test_->inputs.num_rows;
  for (std::int64_t begin = 0; begin < num_rows; begin += options_.batch_size) {
    if (!goes_on({"evaluate", unit(), begin, num_rows})) return {};
    const std::int64_t end = std::min(begin + options_.batch_size, num_rows);
    const Tensors outputs = pipeline->forward_tensors(test_->inputs.rows(begin, end));
    const Tensors targets = test_->targets.rows(begin, end);
    const SummedLoss summed = summed_loss(options_.loss, outputs, targets.front(), /*with_accuracy=*/true);
    sum += summed.sum.item<double>();
    count += summed.count.item<std::int64_t>();
    num_right += summed.num_right;
  }
  const double mean = sum / static_cast<double>(std::max<std::int64_t>(count, 1));
  const Measure loss = {"test_loss", mean, fmt::format("{:.4f}", mean)};
  if (options_.loss == TensorLoss::kMse) return {loss};
  const double accuracy = static_cast<double>(num_right) / static_cast<double>(std::max<std::int64_t>(count, 1));
  return {{"test_accuracy", accuracy, fmt::format("{:.2f} % of {} classes", 100 * accuracy, count)}, loss};
}

std::map<std::string, std::string> TensorTask::metadata() const {
  return {{"gpipe.task", "tensors"}, {"gpipe.model", kScriptModel}, {"gpipe.loss", name(options_.loss)}};
}

}  // namespace gpipe::train
