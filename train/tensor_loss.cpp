#include "train/tensor_loss.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "cli/quantity.h"

namespace gpipe::train {
namespace {

constexpr std::int64_t kNoClass = -100;

std::string shape_of(const at::Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); }

// Whether the output without that dimension has the target's shape.
bool has_classes_in(std::int64_t dimension, const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() != target.dim() + 1) return false;
  std::vector<std::int64_t> places = output.sizes().vec();
  places.erase(places.begin() + dimension);
  return target.sizes() == at::IntArrayRef(places);
}

// One row a place, one column a class.
at::Tensor scores_of(const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() >= 2 && has_classes_in(1, output, target)) return output.movedim(1, -1).flatten(0, -2);
  if (output.dim() >= 2 && has_classes_in(output.dim() - 1, output, target)) return output.flatten(0, -2);
  throw InvalidArgument(
      fmt::format("cross-entropy needs scores of classes for each number of the target {}, but the model's output is "
                  "{}; the target has the output's shape without the dimension of the classes",
                  shape_of(target), shape_of(output)));
}

SummedLoss cross_entropy(const at::Tensor& output, const at::Tensor& target, bool with_accuracy) {
  const at::Tensor scores = scores_of(output, target).to(at::kFloat);
  const at::Tensor wanted = target.flatten().to(at::kLong);
  const at::Tensor counts = wanted.ne(kNoClass);
  SummedLoss result{at::cross_entropy_loss(scores, wanted, {}, at::Reduction::Sum, kNoClass), counts.sum()};
  if (with_accuracy) result.num_right = scores.argmax(1).eq(wanted).logical_and(counts).sum().item<std::int64_t>();
  return result;
}

SummedLoss squared_error(const at::Tensor& output, const at::Tensor& target) {
  if (output.sizes() != target.sizes()) {
    throw InvalidArgument(
        fmt::format("mse needs a target of the shape of the model's output, {}, but the target is {}; give one number "
                    "for each of the output's",
                    shape_of(output), shape_of(target)));
  }
  return {at::mse_loss(output.to(target.scalar_type()), target, at::Reduction::Sum),
          at::scalar_tensor(target.numel(), at::kLong)};
}

}  // namespace

const char* name(TensorLoss loss) { return loss == TensorLoss::kMse ? "mse" : "cross-entropy"; }

TensorLoss parse_tensor_loss(std::string_view word) {
  const int choice = cli::parse_choice(word, {name(TensorLoss::kCrossEntropy), name(TensorLoss::kMse)});
  return choice == 0 ? TensorLoss::kCrossEntropy : TensorLoss::kMse;
}

void check_target(TensorLoss loss, const at::Tensor& target) {
  const bool is_whole = at::isIntegralType(target.scalar_type(), /*includeBool=*/false);
  if (loss == TensorLoss::kCrossEntropy && !is_whole) {
    throw InvalidArgument(
        fmt::format("cross-entropy needs the numbers of classes, but the target is of {}; give int64, "
                    "or take --loss mse",
                    c10::toString(target.scalar_type())));
  }
  if (loss == TensorLoss::kMse && !target.is_floating_point()) {
    throw InvalidArgument(
        fmt::format("mse needs floating-point numbers, but the target is of {}; give float32, or take "
                    "--loss cross-entropy",
                    c10::toString(target.scalar_type())));
  }
}

SummedLoss summed_loss(TensorLoss loss, const Tensors& outputs, const at::Tensor& target, bool with_accuracy) {
  const at::Tensor& output = outputs.front();
  return loss == TensorLoss::kMse ? squared_error(output, target) : cross_entropy(output, target, with_accuracy);
}

}  // namespace gpipe::train
