// Graph aliases: which values of a flat graph may share memory, and which operations write to it.
#pragma once

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "gpipe/torchscript/flat_graph.h"

namespace gpipe::detail {

// What libtorch's analysis says, with three differences: slots and the tensors of the mini-batch are different tensors,
// and operations that may return their input as it is, although they do not say so, such as dropout, count as views.
//
// Thread-compatible.
class GraphAliases {
 public:
  // REQUIRES: `flat` outlives it.
  explicit GraphAliases(const FlatGraph& flat);

  // Whether both may be the same memory, or hold the same tensor or container.
  bool may_share(const torch::jit::Value* one, const torch::jit::Value* other) const;
  // The same for the containers themselves, without what they hold.
  bool may_be_same(const torch::jit::Value* one, const torch::jit::Value* other) const;

  // Whether `one` may share with any of them.
  bool may_share_any(const torch::jit::Value* one, const std::vector<const torch::jit::Value*>& others) const;

  // What the operations write to: for each node the values, those of nodes within its blocks too. Empty for most.
  const std::vector<std::vector<const torch::jit::Value*>>& written() const { return written_; }

 private:
  // Of the values of `flat` to those of a copy, on which the analysis is made.
  std::unordered_map<const torch::jit::Value*, torch::jit::Value*> copy_of_;
  std::shared_ptr<torch::jit::Graph> copy_;
  std::unique_ptr<torch::jit::AliasDb> analysis_;
  std::vector<std::vector<const torch::jit::Value*>> written_;
};

}  // namespace gpipe::detail
