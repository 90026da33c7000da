#include "train/token_batches.h"

#include <torch/torch.h>

#include <algorithm>

namespace gpipe::train {
namespace {

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double label_smoothing,
                         std::int64_t ignored) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1).to(at::kFloat), targets.flatten(),
                                              torch::nn::functional::CrossEntropyFuncOptions()
                                                  .reduction(torch::kSum)
                                                  .label_smoothing(label_smoothing)
                                                  .ignore_index(ignored));
}

}  // namespace

at::Tensor to_padded(const std::vector<const TokenSequence*>& sequences, std::int32_t pad) {
  std::size_t longest = 0;
  for (const TokenSequence* sequence : sequences) longest = std::max(longest, sequence->size());
  const at::Tensor padded =
      at::full({static_cast<std::int64_t>(sequences.size()), static_cast<std::int64_t>(longest)}, pad, at::kLong);
  auto* row = padded.data_ptr<std::int64_t>();
  for (const TokenSequence* sequence : sequences) {
    std::copy(sequence->begin(), sequence->end(), row);
    row += longest;
  }
  return padded;
}

PipelineImpl::Loss token_loss(double label_smoothing, std::int64_t ignored) {
  return [=](const Tensors& outputs, const Tensors& targets) {
    return LossValue(cross_entropy(outputs.front(), targets.front(), label_smoothing, ignored),
                     targets.front().ne(ignored).sum());
  };
}

double summed_cross_entropy(const at::Tensor& logits, const at::Tensor& targets, std::int64_t ignored) {
  return cross_entropy(logits, targets, /*label_smoothing=*/0, ignored).item<double>();
}

}  // namespace gpipe::train
