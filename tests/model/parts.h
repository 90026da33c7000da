// A small network as somebody else may have written it, and the same as a chain of parts: slices of its forward, some
// of which have parameters in the same submodules.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/model/layer_chain.h"

namespace gpipe::test {

// In the order in which it registers them: shift, embed { weight }, encoder { 0 { attn { in_proj_weight, in_proj_bias,
// out_proj { weight } }, norm { weight, bias, running_mean, running_var }, drop } }, head { bias }. The head uses
// embed.weight, too.
inline constexpr const char* kWholeParameters[] = {
    "shift",
    "embed.weight",
    "encoder.0.attn.in_proj_weight",
    "encoder.0.attn.in_proj_bias",
    "encoder.0.attn.out_proj.weight",
    "encoder.0.norm.weight",
    "encoder.0.norm.bias",
    "head.bias",
};
inline constexpr const char* kWholeBuffers[] = {"encoder.0.norm.running_mean", "encoder.0.norm.running_var"};

// One layer: tensors and scopes under the names that they have in the network, and a piece of its forward.
class SliceImpl : public torch::nn::Module {
 public:
  using Piece = std::function<at::Tensor(const SliceImpl&, const at::Tensor&)>;
  explicit SliceImpl(Piece piece) : piece_(std::move(piece)) {}

  SliceImpl& with_parameter(const std::string& name, const at::Tensor& value) {
    const auto [scope, key] = place_of(name);
    scope->register_parameter(key, value.clone());
    return *this;
  }
  SliceImpl& with_buffer(const std::string& name, const at::Tensor& value) {
    const auto [scope, key] = place_of(name);
    scope->register_buffer(key, value.clone());
    return *this;
  }
  // One without parameters, which is switched between training and evaluation.
  SliceImpl& with_scope(const std::string& name) {
    place_of(name + ".");
    return *this;
  }

  at::Tensor operator[](const std::string& name) const {
    const auto parameters = named_parameters();
    return parameters.contains(name) ? parameters[name] : tied_or_buffer(name);
  }
  bool trains(const std::string& scope) const { return named_modules()[scope]->is_training(); }

  at::Tensor forward(const at::Tensor& input) const { return piece_(*this, input); }

  // The tensor that its forward uses where a tie has taken the parameter out of the module.
  void use(const std::string& name, const at::Tensor& tensor) { used_.emplace_back(name, tensor); }

 private:
  std::pair<torch::nn::Module*, std::string> place_of(const std::string& name) {
    torch::nn::Module* module = this;
    std::size_t begin = 0;
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
      const std::string child = name.substr(begin, dot - begin);
      const auto children = module->named_children();
      module = children.contains(child) ? children[child].get()
                                        : module->register_module(child, std::make_shared<torch::nn::Module>()).get();
      begin = dot + 1;
    }
    return {module, name.substr(begin)};
  }
  at::Tensor tied_or_buffer(const std::string& name) const {
    for (const auto& [used, tensor] : used_) {
      if (used == name) return tensor;
    }
    return named_buffers()[name];
  }

  const Piece piece_;
  std::vector<std::pair<std::string, at::Tensor>> used_;
};

inline std::vector<std::pair<std::string, std::shared_ptr<SliceImpl>>> make_slices() {
  torch::manual_seed(5);
  std::vector<std::pair<std::string, std::shared_ptr<SliceImpl>>> slices;
  const auto add = [&](const std::string& name, SliceImpl::Piece piece) -> SliceImpl& {
    slices.emplace_back(name, std::make_shared<SliceImpl>(std::move(piece)));
    return *slices.back().second;
  };
  const at::Tensor embedding = torch::randn({6, 5});
  add("embed", [](const SliceImpl& own,
                  const at::Tensor& input) { return at::linear(input, own["embed.weight"]) + own["shift"]; })
      .with_parameter("shift", torch::randn({6}))
      .with_parameter("embed.weight", embedding);
  add("projection in", [](const SliceImpl& own, const at::Tensor& input) {
    return at::linear(input, own["encoder.0.attn.in_proj_weight"]);
  }).with_parameter("encoder.0.attn.in_proj_weight", torch::randn({6, 6}));
  // Named as a scope of the network, which three of the parts have something in.
  add("encoder.0",
      [](const SliceImpl& own, const at::Tensor& input) {
        return at::dropout(input + own["encoder.0.attn.in_proj_bias"], 0.3, own.trains("encoder.0.drop"));
      })
      .with_parameter("encoder.0.attn.in_proj_bias", torch::randn({6}))
      .with_scope("encoder.0.drop");
  add("projection out",
      [](const SliceImpl& own, const at::Tensor& input) {
        return at::batch_norm(at::linear(input, own["encoder.0.attn.out_proj.weight"]), own["encoder.0.norm.weight"],
                              own["encoder.0.norm.bias"], own["encoder.0.norm.running_mean"],
                              own["encoder.0.norm.running_var"], own.trains("encoder.0.norm"), 0.1, 1e-5, false);
      })
      .with_parameter("encoder.0.attn.out_proj.weight", torch::randn({6, 6}))
      .with_parameter("encoder.0.norm.weight", torch::rand({6}))
      .with_parameter("encoder.0.norm.bias", torch::randn({6}))
      .with_buffer("encoder.0.norm.running_mean", torch::zeros({6}))
      .with_buffer("encoder.0.norm.running_var", torch::ones({6}));
  SliceImpl& head = add("head", [](const SliceImpl& own, const at::Tensor& input) {
    const at::Tensor squashed = own.is_training() ? input.tanh() : input.tanh() * 0.5;
    return at::matmul(squashed, own["embed.weight"]) + own["head.bias"];
  });
  head.with_parameter("embed.weight", embedding).with_parameter("head.bias", torch::randn({5}));
  head.use("embed.weight", head["embed.weight"]);
  return slices;
}

inline LayerChain chain_of_parts() {
  LayerChain chain;
  for (const auto& [name, slice] : make_slices()) chain.add_part(name, slice);
  chain.tie({"embed", "embed.weight"}, {"head", "embed.weight"});
  return chain;
}

// The same layers, whose parameters have the layers' names in front: "layer 4.head.bias".
inline LayerChain chain_of_plain_layers() {
  LayerChain chain;
  for (const auto& [name, slice] : make_slices()) chain.add("layer " + std::to_string(chain.size()), slice);
  chain.tie("layer 0.embed.weight", "layer 4.embed.weight");
  return chain;
}

}  // namespace gpipe::test
