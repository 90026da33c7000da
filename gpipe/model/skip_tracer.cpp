#include "gpipe/model/skip_tracer.h"

#include <fmt/format.h>

#include <utility>

#include "gpipe/error.h"

namespace gpipe::detail {

std::string SkipTracer::describe(int layer) const { return fmt::format("layer {} ({})", layer, names_[layer]); }

void SkipTracer::begin_layer(int layer, const Tensors& inputs) {
  layer_ = layer;
  stand_in_ = inputs.empty() ? at::Tensor() : inputs.front();
  stashed_now_.clear();
  stashed_names_.clear();
  boundaries_.clear();
}

void SkipTracer::put(const std::string& name, Stashed stashed) {
  const auto [found, is_new] = uses_.try_emplace(name, Use{layer_, -1, {}, 0});
  if (!is_new) {
    violations_.push_back(fmt::format("\"{}\" is stashed by {} and again by {}", name,
                                      describe(found->second.stash_layer), describe(layer_)));
  }
  if (stashed.tensor.defined()) stashed_now_.push_back(stashed.tensor);
  stashed_names_.push_back(name);
  found->second.bytes = bytes_of({stashed.tensor});
  found->second.stashed = std::move(stashed);
}

Stashed SkipTracer::take(const std::string& name) {
  const auto found = uses_.find(name);
  if (found == uses_.end()) {
    violations_.push_back(fmt::format("\"{}\" is popped by {}, but not stashed before", name, describe(layer_)));
    return {stand_in_, stand_in_.defined() ? version_of(stand_in_) : 0};
  }
  Use& use = found->second;
  if (use.pop_layer >= 0) {
    violations_.push_back(
        fmt::format("\"{}\" is popped by {} and again by {}", name, describe(use.pop_layer), describe(layer_)));
  }
  use.pop_layer = layer_;
  if (!use.stashed.tensor.defined()) return {};
  if (version_of(use.stashed.tensor) != use.stashed.version) return use.stashed;  // `pop` says what is wrong
  const bool requires_grad = use.stashed.tensor.requires_grad() && at::GradMode::is_enabled();
  Tensors popped = {use.stashed.tensor.detach().clone()};  // a copy, because the layer may change it in place
  boundaries_.push_back(Boundary::enter(popped, {requires_grad}));
  return {popped.front(), version_of(popped.front())};
}

void SkipTracer::end_layer() {
  for (const std::string& name : stashed_names_) {
    Stashed& stashed = uses_.at(name).stashed;
    if (!stashed.tensor.defined()) continue;
    const bool is_unchanged = version_of(stashed.tensor) == stashed.version;
    stashed.tensor = stashed.tensor.detach().requires_grad_(stashed.tensor.requires_grad());
    if (is_unchanged) stashed.version = version_of(stashed.tensor);
  }
  stashed_now_.clear();
  stashed_names_.clear();
  boundaries_.clear();
  stand_in_ = at::Tensor();
}

std::vector<SkipProfile> SkipTracer::finish(bool complete) {
  for (const auto& [name, use] : uses_) {
    if (complete && use.pop_layer < 0) {
      violations_.push_back(fmt::format("\"{}\" is stashed by {}, but never popped", name, describe(use.stash_layer)));
    }
  }
  if (failed()) {
    std::string text = fmt::format("the model's skip connections do not fit together ({} found):", violations_.size());
    for (const std::string& violation : violations_) text += "\n  " + violation;
    if (!complete) text += fmt::format("\n  the layers behind {} could not be checked", describe(layer_));
    throw SkipError(text);
  }
  std::vector<SkipProfile> skips;
  for (const auto& [name, use] : uses_) {
    skips.push_back({name, use.stash_layer, use.pop_layer, use.bytes});
  }
  return skips;
}

}  // namespace gpipe::detail
