// LayerChain: the model as a list of layers that are built only where they are needed.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/model/layer.h"

namespace gpipe {

namespace detail {

// A module holder, as TORCH_MODULE makes them.
template <typename T, typename = void>
struct IsHolder : std::false_type {};
template <typename T>
struct IsHolder<T, std::void_t<typename T::ContainedType>>
    : std::is_base_of<torch::nn::ModuleHolder<typename T::ContainedType>, T> {};

template <typename T>
struct IsModulePointer : std::false_type {};
template <typename T>
struct IsModulePointer<std::shared_ptr<T>> : std::is_base_of<torch::nn::Module, T> {};

template <typename T>
inline constexpr bool kIsBuiltModule = IsHolder<T>::value || IsModulePointer<T>::value;

}  // namespace detail

// A parameter by its name in the model, "embedding.weight". Where several parts have one of that name, such as a weight
// that the model uses twice, `layer` says whose.
struct TiedWeight {
  TiedWeight(const char* weight_name) : name(weight_name) {}             // NOLINT(google-explicit-constructor)
  TiedWeight(std::string weight_name) : name(std::move(weight_name)) {}  // NOLINT(google-explicit-constructor)
  TiedWeight(std::string layer_name, std::string weight_name)
      : layer(std::move(layer_name)), name(std::move(weight_name)) {}

  std::string layer;  // empty: the one that has it
  std::string name;
};

// `user` takes the values of `owner`.
struct TieNames {
  TiedWeight owner;
  TiedWeight user;
};

// Adding a layer stores its constructor call; `build` makes it, in a random stream that is a function of (seed, name):
// the initial weights do not depend on the partition, nor on which layers were built before.
//
// Thread-compatible.
class LayerChain {
 public:
  LayerChain() = default;
  // The layers of a model that is built already, with its names. They stay shared with it.
  LayerChain(const torch::nn::Sequential& model);  // NOLINT(google-explicit-constructor)

  // `Holder` is a module holder such as torch::nn::Linear; its constructor gets `args` when the layer is built. A name
  // may have several parts, "layer1.0.conv1": then the layer's parameters are called as if modules were nested that
  // way. Throws InvalidArgument if a part is empty, or if the name is taken or inside one that is.
  template <typename Holder, typename... Args>
  LayerChain& add(const std::string& name, Args... args) {
    static_assert(
        detail::IsHolder<Holder>::value,
        "chain.add<Holder>(name, args...) wants a module holder, such as torch::nn::Linear, and not the module "
        "itself, torch::nn::LinearImpl; for a class of your own, TORCH_MODULE(Name) makes the holder of NameImpl");
    if constexpr (detail::IsHolder<Holder>::value) {
      using Module = typename Holder::ContainedType;
      static_assert(std::is_constructible_v<Module, const Args&...>,
                    "chain.add<Holder>(name, args...): the module has no constructor that takes these arguments; for a "
                    "module that is built already, write chain.add(name, module), without <Holder>");
      if constexpr (std::is_constructible_v<Module, const Args&...>) {
        return add_layer(name, [args = std::make_tuple(std::move(args)...)] {
          return make_layer(
              std::apply([](const auto&... arg) { return Holder(std::make_shared<Module>(arg...)).ptr(); }, args));
        });
      }
    }
    return *this;
  }

  // A module that is built already: a holder, add("relu", torch::nn::ReLU()), or a std::shared_ptr of it. It stays
  // shared with the caller, as those of a Sequential do. Its weights are what they are: neither the seed nor the name
  // has to do with them, and over processes every rank has built all of it, to keep its own stages only. Throws as
  // above, and InvalidArgument for a holder or pointer without a module.
  template <typename Built, std::enable_if_t<detail::kIsBuiltModule<Built>, int> = 0>
  LayerChain& add(const std::string& name, const Built& module) {
    if constexpr (detail::IsHolder<Built>::value) {
      return add_built(name, !module.is_empty(), [&] { return make_layer(module.ptr()); });
    } else {
      return add_built(name, module != nullptr, [&] { return make_layer(module); });
    }
  }
  template <typename Other, std::enable_if_t<!detail::kIsBuiltModule<Other>, int> = 0>
  LayerChain& add(const std::string& /*name*/, const Other& /*module*/) {
    static_assert(detail::kNever<Other>,
                  "chain.add(name, module) takes a module holder, such as torch::nn::ReLU(), or a std::shared_ptr of a "
                  "module; to have the layer built where it is needed, write chain.add<Holder>(name, args...)");
    return *this;
  }

  // A layer that is a part of a larger module which somebody else wrote: what is in `module` has the names of the larger
  // one, "layer1.0.bn1.weight", and so has the pipeline. Several parts may have parameters in one submodule; the
  // pipeline has that submodule once, with all of them, and switches theirs when it is switched between training and
  // evaluation. `name` is for messages, profiles and plans only. A name of a parameter is in one part, or in others only
  // as users of a tie. Throws as add does for the name and the module.
  template <typename Built, std::enable_if_t<detail::kIsBuiltModule<Built>, int> = 0>
  LayerChain& add_part(const std::string& name, const Built& module) {
    if constexpr (detail::IsHolder<Built>::value) {
      return add_built_part(name, module.is_empty() ? nullptr : module.ptr(), [&] { return make_layer(module.ptr()); });
    } else {
      return add_built_part(name, module, [&] { return make_layer(module); });
    }
  }
  // The same, built where it is needed. `weight_names` are those of all parameters and buffers that it will have, so
  // that every process knows them; names_of_weights gives them.
  LayerChain& add_part(const std::string& name, std::vector<std::string> weight_names, std::function<Layer()> build);

  // Two parameters become one: `user` takes the values and the memory of `owner`, is no longer a parameter of its own,
  // and its gradients are added to the owner's. Names are those of the model: tie("embedding.weight", "head.weight").
  // A weight that two parts have under one name needs the names of the parts, too: tie({"part 1", "shared.weight"},
  // {"part 4", "shared.weight"}). They are checked when the pipeline is made.
  LayerChain& tie(const TiedWeight& owner, const TiedWeight& user);
  const std::vector<TieNames>& ties() const { return ties_; }
  // Whether the parameter of that layer is the user of a tie; `weight_name` is its name in the model.
  bool is_tied_user(int layer, const std::string& weight_name) const;

  // The skips of the layer are in a namespace (see SkipNamespace): layers of the same one share their names.
  LayerChain& isolate(const std::string& layer, const std::string& skip_namespace);

  int size() const { return static_cast<int>(layers_.size()); }
  const std::string& name(int layer) const { return layers_[layer].name; }
  // What the names of the layer's parameters and buffers begin with in the model: its name and a dot, nothing for a part.
  std::string scope(int layer) const { return layers_[layer].is_part ? "" : layers_[layer].name + "."; }
  bool is_part(int layer) const { return layers_[layer].is_part; }
  // Of a part: the names of its parameters and buffers. Nothing for other layers, whose names are not known before they
  // are built.
  const std::vector<std::string>& weight_names(int layer) const { return layers_[layer].weight_names; }
  Layer build(int layer, std::uint64_t seed) const;
  // Whether it was there before, as those of a Sequential: then `build` costs nothing, and the seed changes nothing.
  bool is_built(int layer) const { return layers_[layer].is_built; }

 private:
  struct Entry {
    std::string name;
    std::function<Layer()> build;
    std::string skip_namespace = {};
    bool is_built = false;
    bool is_part = false;
    std::vector<std::string> weight_names = {};  // of a part
  };

  LayerChain& add_entry(Entry entry);
  LayerChain& add_layer(const std::string& name, std::function<Layer()> build);
  LayerChain& add_built(const std::string& name, bool has_module, const std::function<Layer()>& make);
  LayerChain& add_built_part(const std::string& name, const std::shared_ptr<torch::nn::Module>& module,
                             const std::function<Layer()>& make);

  std::vector<Entry> layers_;
  std::map<std::string, int> layer_of_name_;
  std::set<std::string> scopes_;  // the names of the layers that are no parts
  std::vector<TieNames> ties_;
};

// The names of the module's parameters and buffers: module by module, the parameters of each before its buffers.
std::vector<std::string> names_of_weights(const torch::nn::Module& module);

}  // namespace gpipe
