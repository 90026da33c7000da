#include "gpipe/execute/model/model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "gpipe/model/sandbox.h"

namespace gpipe::detail {
namespace {

std::vector<Layer> layers_of(const std::vector<ChainLayer>& chain) {
  std::vector<Layer> layers;
  for (const ChainLayer& layer : chain) layers.push_back(layer.layer);
  return layers;
}

void empty(at::Tensor& tensor) { tensor.set_data(at::empty({0}, tensor.options())); }

}  // namespace

Model::Model(torch::nn::Module& face, const LayerChain& chain, std::uint64_t seed, const IsOwn& is_own, Sharing sharing)
    : face_(face), weight_names_(chain), scopes_(chain, weight_names_) {
  for (int layer = 0; layer < chain.size(); ++layer) {
    const bool is_needed = is_own(layer) || chain.is_built(layer);
    layers_.push_back({layer, chain.name(layer), is_needed ? chain.build(layer, seed) : Layer(), chain.scope(layer)});
  }
  if (sharing == Sharing::kRefused) check_not_shared(chain, layers_of(layers_));
  register_layers();
}

Fingerprint Model::shapes(const IsOwn& is_wanted) const {
  Fingerprint shapes;
  for (const ChainLayer& layer : layers_) {
    if (!is_wanted(layer.index)) continue;
    for (const auto& parameter : layer.layer.module->named_parameters()) {
      shapes.emplace_back(layer.scope + parameter.key(), describe_shape(parameter.value()));
    }
  }
  return shapes;
}

void Model::bind_ties(const LayerChain& chain) {
  ties_ = detail::bind_ties(chain, layers_of(layers_));
  if (!ties_.empty()) register_layers();
}

void Model::untie() {
  for (const Tie& tie : ties_) detail::untie(tie);
}

void Model::relink_ties() const {
  for (const Tie& tie : ties_) relink(tie);
}

void Model::forget_tied_grads() const {
  for (const Tie& tie : ties_) forget_user_grads(tie);
}

void Model::keep_own(const IsOwn& is_own) {
  for (Tie& tie : ties_) detail::keep_own(tie, is_own);
  bool any_other = false;
  for (ChainLayer& layer : layers_) {
    if (layer.layer.module == nullptr || is_own(layer.index)) continue;
    any_other = true;
    for (at::Tensor& parameter : layer.layer.module->parameters()) {
      parameter.mutable_grad().reset();
      empty(parameter);
    }
    for (at::Tensor& buffer : layer.layer.module->buffers()) empty(buffer);
    layer.layer = Layer();
  }
  if (any_other) register_layers();
}

std::vector<std::string> Model::layer_names() const {
  std::vector<std::string> names;
  for (const ChainLayer& layer : layers_) names.push_back(layer.name);
  return names;
}

std::vector<ChainLayer> Model::built_layers() const {
  std::vector<ChainLayer> built;
  std::copy_if(layers_.begin(), layers_.end(), std::back_inserter(built),
               [](const ChainLayer& layer) { return layer.layer.module != nullptr; });
  return built;
}

void Model::register_layers() {
  const std::vector<ChainLayer> built = built_layers();
  scopes_.register_in(face_, built);
  listeners_ = find_listeners(built);
  modes_ = ModuleModes(built);
  buffers_ = ChangingBuffers(built);
}

void Model::train_parts(bool on) const {
  for (const ChainLayer& layer : layers_) {
    if (layer.scope.empty() && layer.layer.module != nullptr) layer.layer.module->train(on);
  }
}

BufferCopies Model::snapshot_buffers() {
  if (modes_.have_changed()) buffers_ = ChangingBuffers(built_layers());
  return buffers_.snapshot();
}

std::string describe_shape(const at::Tensor& tensor) {
  return fmt::format("[{}] of {}", fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()));
}

}  // namespace gpipe::detail
