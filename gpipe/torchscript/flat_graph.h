// Flat graph: a TorchScript module as one list of operations, with what it reads of the module as inputs.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpipe::detail {

// An attribute of a submodule that operations read anew at each run.
struct AttributeSlot {
  enum class Kind {
    kParameter,
    kBuffer,
    kConstant,  // a tensor that is neither: an attribute, or a value that tracing has recorded
    kTraining,  // whether the submodule is in training
  };
  Kind kind = Kind::kParameter;
  std::string scope;          // path of the submodule, "layer1.0.bn1"; empty for the module itself
  std::string key;            // in it, "weight"
  at::Tensor tensor;          // undefined for kTraining
  bool is_tied_user = false;  // a layer's own copy of a parameter that belongs to another one

  std::string name() const { return scope.empty() ? key : scope + "." + key; }
};

// A batch norm that keeps running statistics, by what it reads.
struct BatchNormSlots {
  std::string scope;  // of its running mean
  std::optional<AttributeSlot> weight;
  std::optional<AttributeSlot> bias;
  AttributeSlot running_mean;
  AttributeSlot running_var;
  std::optional<AttributeSlot> num_batches_tracked;
  std::optional<double> momentum;  // nothing: a cumulative average
  double eps = 0;
};

// A value of the top level that is no constant, and the operations that need it.
struct FlatValue {
  torch::jit::Value* value = nullptr;
  int made_by = -1;  // index among the nodes; -1 for an input
  std::vector<int>
      used_by;  // in ascending order, also by nodes in their blocks; the number of nodes stands for the output
  // Whether it has to be handed on where the nodes before `cut` are in one layer and those from there on in others.
  bool is_live_at(int cut) const { return made_by < cut && !used_by.empty() && used_by.back() >= cut; }
};

// Thread-compatible.
struct FlatGraph {
  // Its inputs are the tensors of the mini-batch, and behind them the slots.
  std::shared_ptr<torch::jit::Graph> graph;
  std::vector<std::string> inputs;  // names of the mini-batch's tensors
  std::vector<AttributeSlot> slots;
  std::vector<AttributeSlot> weights;    // all parameters and buffers of the module, whether they are read or not
  std::vector<torch::jit::Node*> nodes;  // of the top level, in program order, without constants
  std::vector<FlatValue> values;         // that are not slots, in the order in which they are made
  std::vector<FlatValue> slot_values;    // one a slot
  std::map<std::string, bool> training;  // mode of each submodule, by its path
  std::map<std::string, BatchNormSlots> deferred_norms;  // by their scopes, if batch norms are deferred
  std::optional<bool> recorded_mode;  // whether the operations are those of training; nothing: they ask for the mode
  // Owns the methods of classes, which the code of a layer refers to: those of `with torch.no_grad()`.
  std::shared_ptr<torch::jit::CompilationUnit> classes;

  int num_nodes() const { return static_cast<int>(nodes.size()); }
};

// Calls are inlined, attributes become slots, tuples are taken apart, and what is constant is folded. Tensors that
// several attributes hold are one slot, with the name of the first. An attribute that is assigned keeps its tensor, to
// which the new value is copied; the operations that follow use the value itself.
//
// `inputs` name the mini-batch's tensors in their order; without any, they are those of forward's signature.
//
// With `deferred_batch_norm`, batch norms with running statistics become those of nn::DeferredBatchNorm.
//
// Throws InvalidArgument that names the operation or attribute and a remedy, for what cannot be cut into layers: a
// module without forward, calls that cannot be inlined, attributes that are objects of C++ classes, values other than
// tensors that are assigned, and results that are no tensors.
FlatGraph flatten(const torch::jit::Module& module, const std::vector<std::string>& inputs,
                  bool deferred_batch_norm = false);

}  // namespace gpipe::detail
