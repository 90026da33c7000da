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

// "layer1.0.conv1" becomes the child "conv1" of the child "0" of the child "layer1" of `parent`.
void register_nested(torch::nn::Module& parent, const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) {
    parent.register_module(name, std::move(module));
    return;
  }
  const std::string outer = name.substr(0, dot);
  const auto children = parent.named_children();
  const auto* existing = children.find(outer);
  const auto child =
      existing != nullptr ? *existing : parent.register_module(outer, std::make_shared<torch::nn::Module>());
  register_nested(*child, name.substr(dot + 1), std::move(module));
}

std::vector<int> find_registration_order(const std::vector<ChainLayer>& layers) {
  torch::nn::Module all;
  std::map<const torch::nn::Module*, int> layer_of;
  for (const ChainLayer& layer : layers) {
    const auto stand_in = std::make_shared<torch::nn::Module>();
    layer_of[stand_in.get()] = layer.index;
    register_nested(all, layer.name, stand_in);
  }
  std::vector<int> order;
  for (const auto& module : all.modules(/*include_self=*/false)) {
    const auto found = layer_of.find(module.get());
    if (found != layer_of.end()) order.push_back(found->second);
  }
  return order;
}

std::vector<Layer> layers_of(const std::vector<ChainLayer>& chain) {
  std::vector<Layer> layers;
  for (const ChainLayer& layer : chain) layers.push_back(layer.layer);
  return layers;
}

void empty(at::Tensor& tensor) { tensor.set_data(at::empty({0}, tensor.options())); }

}  // namespace

Model::Model(torch::nn::Module& face, const LayerChain& chain, std::uint64_t seed, const IsOwn& is_own, Sharing sharing)
    : face_(face) {
  for (int layer = 0; layer < chain.size(); ++layer) {
    const bool is_needed = is_own(layer) || chain.is_built(layer);
    layers_.push_back({layer, chain.name(layer), is_needed ? chain.build(layer, seed) : Layer()});
  }
  if (sharing == Sharing::kRefused) check_not_shared(layer_names(), layers_of(layers_));
  registration_order_ = find_registration_order(layers_);
  register_layers();
}

Fingerprint Model::shapes(const IsOwn& is_wanted) const {
  Fingerprint shapes;
  for (const ChainLayer& layer : layers_) {
    if (!is_wanted(layer.index)) continue;
    for (const auto& parameter : layer.layer.module->named_parameters()) {
      shapes.emplace_back(layer.name + "." + parameter.key(), describe_shape(parameter.value()));
    }
  }
  return shapes;
}

void Model::bind_ties(const std::vector<TieNames>& names) {
  ties_ = detail::bind_ties(names, layer_names(), layers_of(layers_));
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
  for (const auto& child : face_.named_children()) face_.unregister_module(child.key());
  const std::vector<ChainLayer> built = built_layers();
  for (const ChainLayer& layer : built) register_nested(face_, layer.name, layer.layer.module);
  listeners_ = find_listeners(built);
  modes_ = ModuleModes(built);
  buffers_ = ChangingBuffers(built);
}

BufferCopies Model::snapshot_buffers() {
  if (modes_.have_changed()) buffers_ = ChangingBuffers(built_layers());
  return buffers_.snapshot();
}

std::string describe_shape(const at::Tensor& tensor) {
  return fmt::format("[{}] of {}", fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()));
}

}  // namespace gpipe::detail
