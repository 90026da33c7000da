// From TorchScript: a module that somebody else wrote, in Python for example, as a chain of layers.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/model/layer_chain.h"

namespace torch::jit {
struct Module;
}

namespace gpipe {

struct TorchScriptOptions {
  // Names of the mini-batch's tensors in their order, each an argument of the module's forward or an element of one:
  // "x", "pair.0" of a tuple or list, "features.mask" of a dictionary. Empty: all tensors of forward's signature, in
  // its order; lists and dictionaries need names. Arguments that are not named take their defaults.
  TORCH_ARG(std::vector<std::string>, inputs) = {};
  // So many layers at least, as far as the network has places to cut: enough to give each stage its share.
  TORCH_ARG(int, min_layers) = 32;
  // A parameter of at most so many bytes that several layers use is handed on from layer to layer, so that the
  // gradients of its uses are added up as in the whole module. A larger one is tied (LayerChain::tie): each of its
  // layers adds up its own gradients over the mini-batch, and these sums are added up at the end, which gives other
  // last bits.
  TORCH_ARG(std::int64_t, most_shared_bytes) = 1 << 20;
  // Batch norms move their running statistics once a mini-batch, as nn::DeferredBatchNorm does.
  TORCH_ARG(bool, deferred_batch_norm) = false;
};

// The module as a chain that computes the same, bit for bit: the module's operations in its order, cut where few
// tensors are handed on. Its result, a tensor or a tuple, list or dictionary of tensors, is flattened in order; None
// becomes an undefined tensor. Parameters and buffers stay shared with the module and keep its names; train() and
// eval() of a pipeline, or of its submodules, act as those of the module. Cutting is refused where it would change a
// result: see docs/any-network.md.
//
// A TorchScript file is a program: load it only if you would run one of the same origin. The file is read to the memory
// of this process, on the CPU.
//
// Throws CheckpointError for a file that cannot be read or is no TorchScript; InvalidArgument for options that do not
// fit the module, and for a module that cannot be cut into layers: it names the operation or attribute, and what to
// write instead.
LayerChain from_torchscript(const std::string& file, const TorchScriptOptions& options = {});
LayerChain from_torchscript(const torch::jit::Module& module, const TorchScriptOptions& options = {});

}  // namespace gpipe
