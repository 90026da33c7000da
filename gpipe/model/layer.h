// Layer: one element of the chain, whatever the types its forward takes and returns.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe {

// A built layer. Thread-compatible.
struct Layer {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(Tensors)> forward;
};

// A built layer in its place in the chain.
struct ChainLayer {
  int index = 0;
  std::string name;
  Layer layer;
  // What the names of its parameters and buffers begin with in the model, "layer1.0."; empty for a part, whose own names
  // are those of the model.
  std::string scope = {};
};

namespace detail {

// The parameter types of a member function, without references.
template <typename Method>
struct Signature;
template <typename Result, typename Class, typename... Args>
struct Signature<Result (Class::*)(Args...)> {
  using Arguments = std::tuple<std::decay_t<Args>...>;
};
template <typename Result, typename Class, typename... Args>
struct Signature<Result (Class::*)(Args...) const> : Signature<Result (Class::*)(Args...)> {};

template <typename T>
struct IsTensorTuple : std::false_type {};
template <typename... Ts>
struct IsTensorTuple<std::tuple<Ts...>> : std::bool_constant<(std::is_same_v<Ts, at::Tensor> && ...)> {};

void check_num_tensors(std::size_t got, std::size_t expected);

template <typename Tuple>
Tuple to_tuple(Tensors tensors) {
  check_num_tensors(tensors.size(), std::tuple_size_v<Tuple>);
  std::size_t next = 0;
  Tuple tuple;
  std::apply([&](auto&... element) { ((element = std::move(tensors[next++])), ...); }, tuple);
  return tuple;
}

inline Tensors to_tensors(at::Tensor tensor) { return {std::move(tensor)}; }
inline Tensors to_tensors(Tensors tensors) { return tensors; }
template <typename... Ts>
Tensors to_tensors(std::tuple<Ts...> tuple) {
  return std::apply([](auto&... element) { return Tensors{std::move(element)...}; }, tuple);
}

// forward(tensor) compiles: what else it takes has defaults, as in ConvTranspose2d.
template <typename Module, typename = void>
struct TakesOneTensor : std::false_type {};
template <typename Module>
struct TakesOneTensor<Module, std::void_t<decltype(std::declval<Module&>().forward(std::declval<at::Tensor>()))>>
    : std::true_type {};

// There is one forward, no template and not overloaded, so that its parameters are known.
template <typename Module, typename = void>
struct HasOneForward : std::false_type {};
template <typename Module>
struct HasOneForward<Module, std::void_t<decltype(&Module::forward)>> : std::true_type {};

// For a static_assert that fails whenever it is instantiated.
template <typename T>
inline constexpr bool kNever = false;

template <typename Module>
Tensors call_with_one(Module& module, Tensors tensors) {
  check_num_tensors(tensors.size(), 1);
  return to_tensors(module.forward(std::move(tensors.front())));
}

template <typename Module>
Tensors call_only_forward(Module& module, Tensors tensors) {
  using Arguments = typename Signature<decltype(&Module::forward)>::Arguments;
  if constexpr (std::is_same_v<Arguments, std::tuple<Tensors>>) {
    return to_tensors(module.forward(std::move(tensors)));
  } else if constexpr (IsTensorTuple<Arguments>::value) {
    return std::apply([&](auto&... tensor) { return to_tensors(module.forward(std::move(tensor)...)); },
                      static_cast<Arguments&>(*std::make_unique<Arguments>(to_tuple<Arguments>(std::move(tensors)))));
  } else if constexpr (TakesOneTensor<Module>::value) {
    return call_with_one(module, std::move(tensors));
  } else {
    using Argument = std::tuple_element_t<0, Arguments>;
    static_assert(std::tuple_size_v<Arguments> == 1 && IsTensorTuple<Argument>::value,
                  "a layer's forward takes tensors, one std::tuple of tensors, or one std::vector of tensors");
    return to_tensors(module.forward(to_tuple<Argument>(std::move(tensors))));
  }
}

template <typename Module>
Tensors call(Module& module, Tensors tensors) {
  if constexpr (HasOneForward<Module>::value) {
    return call_only_forward(module, std::move(tensors));
  } else if constexpr (TakesOneTensor<Module>::value) {
    return call_with_one(module, std::move(tensors));
  } else {
    static_assert(kNever<Module>,
                  "a layer needs a forward of tensors; give a module of its own class, such as torch::nn::Linear or "
                  "std::shared_ptr<torch::nn::LinearImpl>, not the base class torch::nn::Module");
  }
}

}  // namespace detail

// A layer of a known type: `Module` is the class that has forward, such as torch::nn::LinearImpl.
template <typename Module>
Layer make_layer(std::shared_ptr<Module> module) {
  Module* pointer = module.get();
  return {std::move(module), [pointer](Tensors tensors) { return detail::call(*pointer, std::move(tensors)); }};
}

// A layer out of a torch::nn::Sequential. One tensor is passed as such, several as a std::tuple of up to 8 or, if the
// module does not take that, as a std::vector.
Layer make_layer(torch::nn::AnyModule module);

}  // namespace gpipe
