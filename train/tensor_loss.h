// Losses of tensors from files: what --loss names, and whether a target fits it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gpipe/gpipe.h"

namespace gpipe::train {

enum class TensorLoss { kCrossEntropy, kMse };

const char* name(TensorLoss loss);
// "cross-entropy" or "mse"; throws InvalidArgument.
TensorLoss parse_tensor_loss(std::string_view word);

// Throws InvalidArgument for a target of a type that the loss is not of.
void check_target(TensorLoss loss, const at::Tensor& target);

// Over a batch, of the model's first output. Cross-entropy: the target is the number of a class for every place, -100
// where there is none; the classes are the output's second dimension, as torch.nn.functional.cross_entropy has it, or
// the last one. Mean squared error: the target has the output's shape.
struct SummedLoss {
  at::Tensor sum;
  at::Tensor count;            // of what the loss is a mean over
  std::int64_t num_right = 0;  // of the classes; 0 in training
};
// Throws InvalidArgument for shapes that do not fit. `with_accuracy` fills num_right.
SummedLoss summed_loss(TensorLoss loss, const Tensors& outputs, const at::Tensor& target, bool with_accuracy = false);

}  // namespace gpipe::train
