// Chain of a module: a module in C++ that is no chain, cut into layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "gpipe/model/layer_chain.h"
#include "gpipe/torchscript/from_torchscript.h"

namespace gpipe {

namespace detail {

LayerChain chain_of_layer(const Layer& module, const Tensors& sample, const TorchScriptOptions& options);

}  // namespace detail

// The layers of a module whose forward takes tensors and gives tensors, whatever it does between them: what it does
// with the sample is recorded, and cut as from_torchscript cuts a module. `module` is a holder, such as your
// TORCH_MODULE, or a std::shared_ptr of it; its weights stay shared with it. `options.inputs` are not used.
//
// The record has the operations of the mode that the module is in: a chain that was made in training refuses to run in
// evaluation, and the other way round. For evaluation, call eval() on the module and make another chain; it shares the
// weights.
//
// Throws InvalidArgument if the record gives other results than the module, with the same draws, on the sample or on
// one of one row more, and as from_torchscript does. What the record cannot see is what C++ decides by values of
// tensors, and draws from a generator of the module's own: see docs/any-network.md.
template <typename Built>
LayerChain chain_of(const Built& module, const Tensors& sample, const TorchScriptOptions& options = {}) {
  static_assert(
      detail::kIsBuiltModule<Built>,
      "gpipe::chain_of takes a module holder, such as MyNet(10), or a std::shared_ptr of a module of its own class");
  if constexpr (detail::IsHolder<Built>::value) {
    return detail::chain_of_layer(make_layer(module.ptr()), sample, options);
  } else {
    return detail::chain_of_layer(make_layer(module), sample, options);
  }
}
template <typename Built>
LayerChain chain_of(const Built& module, const at::Tensor& sample, const TorchScriptOptions& options = {}) {
  return chain_of(module, Tensors{sample}, options);
}

}  // namespace gpipe
