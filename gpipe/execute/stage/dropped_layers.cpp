#include "gpipe/execute/stage/dropped_layers.h"

#include <algorithm>
#include <utility>

#include "gpipe/model/boundary.h"
#include "gpipe/model/skip_store.h"

namespace gpipe::detail {
namespace {

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() && a.is_alias_of(b);
}

// In the place of inputs that are part of `leaving`. Tells which.
std::vector<bool> copy_handed_on(Tensors& inputs, const Tensors& leaving) {
  std::vector<bool> copied(inputs.size());
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    copied[index] = std::any_of(leaving.begin(), leaving.end(),
                                [&](const at::Tensor& tensor) { return share_memory(inputs[index], tensor); });
  }
  const Tensors given = inputs;
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    const std::size_t first = first_same(given, index);
    if (copied[index]) inputs[index] = first < index ? inputs[first] : copy_of(inputs[index]);
  }
  return copied;
}

// Of stashed tensors that were put in the place of others.
void renew_versions(Crossing& entries, const std::vector<bool>& replaced) {
  for (std::size_t index = entries.num_direct; index < replaced.size(); ++index) {
    if (replaced[index]) entries.versions[index - entries.num_direct] = version_of(entries.tensors[index]);
  }
}

}  // namespace

DroppedLayers::DroppedLayers(const std::string& name, std::vector<ChainLayer> layers, HandedOn handed_on)
    : layers_(std::move(layers)), handed_on_(handed_on), keeper_(name), buffers_(layers_) {}

void DroppedLayers::forget() {
  buffers_ = ChangingBuffers(layers_);
  keeper_.forget();
}

Crossing DroppedLayers::forward(Crossing entries, const Run& run, SecondForward& second) {
  InputKeeper::Before before = keeper_.copy(entries.tensors);
  second.buffers = buffers_.snapshot();
  Crossing entering = entries;
  entering.tensors = detached(entries.tensors);  // the entries themselves stay outside of the graph
  Crossing leaving = run(std::move(entering));
  buffers_.learn(second.buffers);
  renew_versions(entries, keeper_.put_back(entries.tensors, std::move(before)));
  if (handed_on_ == HandedOn::kCopy) renew_versions(entries, copy_handed_on(entries.tensors, leaving.tensors));
  second.versions = versions_of(entries.tensors);
  second.entries = std::move(entries);
  return leaving;
}

void DroppedLayers::again(SecondForward second, const Run& run) const {
  keeper_.check_unchanged(second.entries.tensors, second.versions);
  const ChangingBuffers::Rewind rewind(buffers_, second.buffers);
  Crossing entering = second.entries;
  entering.tensors = detached(second.entries.tensors);
  run(std::move(entering));
  keeper_.check_unchanged(second.entries.tensors, second.versions);
}

}  // namespace gpipe::detail
