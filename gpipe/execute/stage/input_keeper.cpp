#include "gpipe/execute/stage/input_keeper.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "gpipe/error.h"
#include "gpipe/model/boundary.h"
#include "gpipe/model/skip_store.h"

namespace gpipe::detail {

std::vector<std::int64_t> versions_of(const Tensors& tensors) {
  std::vector<std::int64_t> versions;
  versions.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) versions.push_back(tensor.defined() ? version_of(tensor) : 0);
  return versions;
}

at::Tensor copy_of(const at::Tensor& tensor) {
  const at::Tensor source = tensor.detach();
  if (source.layout() != at::kStrided || source.is_non_overlapping_and_dense()) return source.clone();
  // With the gaps between its elements, and each element that occurs several times once.
  std::int64_t extent = source.numel() == 0 ? 0 : 1;
  for (std::int64_t dim = 0; dim < source.dim() && extent > 0; ++dim) {
    extent += (source.size(dim) - 1) * source.stride(dim);
  }
  return source.as_strided({extent}, {1}).clone().as_strided(source.sizes(), source.strides());
}

void InputKeeper::forget() {
  knows_overwritten_ = false;
  overwritten_.clear();
}

InputKeeper::Before InputKeeper::copy(const Tensors& inputs) const {
  Before before{Tensors(inputs.size()), versions_of(inputs)};
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    const std::size_t first = first_same(inputs, index);
    if (first < index) {
      before.copies[index] = before.copies[first];
      continue;
    }
    if (inputs[index].defined() && (!knows_overwritten_ || (index < overwritten_.size() && overwritten_[index]))) {
      before.copies[index] = copy_of(inputs[index]);
    }
  }
  return before;
}

std::vector<bool> InputKeeper::put_back(Tensors& inputs, Before before) {
  overwritten_.resize(inputs.size());
  std::vector<bool> changed(inputs.size());
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    at::Tensor& input = inputs[index];
    if (!input.defined() || version_of(input) == before.versions[index]) continue;
    if (!before.copies[index].defined()) {
      throw InvalidArgument(
          fmt::format("a layer of {} changed input {} in place, which it did not in the first batch; its recompute "
                      "would be wrong: change it always or never",
                      name_, index));
    }
    overwritten_[index] = true;
    changed[index] = true;
    input = std::move(before.copies[index]);
  }
  knows_overwritten_ = true;
  return changed;
}

void InputKeeper::check_unchanged(const Tensors& inputs, const std::vector<std::int64_t>& versions) const {
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    const bool is_own_copy = overwritten_[index];
    if (!inputs[index].defined() || is_own_copy || version_of(inputs[index]) == versions[index]) continue;
    throw InvalidArgument(
        fmt::format("a later layer changed input {} of {} in place, which passes it on and needs it for its recompute; "
                    "clone() it in the layer that passes it on",
                    index, name_));
  }
}

}  // namespace gpipe::detail
