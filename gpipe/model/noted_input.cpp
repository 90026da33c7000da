#include "gpipe/model/noted_input.h"

#include <fmt/format.h>

namespace gpipe::detail {

NotedInput::NotedInput(const Tensors& tensors) {
  if (tensors.empty() || !tensors.front().defined()) return;
  type_ = tensors.front().scalar_type();
  sizes_ = c10::SmallVector<std::int64_t, 5>(tensors.front().sizes().begin(), tensors.front().sizes().end());
}

std::string NotedInput::describe(const torch::nn::Module& layer) const {
  if (!type_) return "";
  std::string text = fmt::format(" on {} [{}]", c10::toString(*type_), fmt::join(sizes_, ", "));
  const Tensors parameters = layer.parameters();
  if (!parameters.empty()) text += fmt::format(", with {} parameters", c10::toString(parameters[0].scalar_type()));
  return text;
}

}  // namespace gpipe::detail
