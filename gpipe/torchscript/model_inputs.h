// Model inputs: the tensors of a mini-batch become the arguments of a module's forward.
#pragma once

#include <ATen/core/function_schema.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <vector>

namespace gpipe::detail {

// Replaces the graph's inputs behind the first, which is the module, by one tensor for each name, and inserts what
// makes the arguments of `schema` of them. "pair.0" is an element of the tuple or list `pair`, "features.mask" that of
// a dictionary. Arguments that no name belongs to take their defaults. Returns the names, those of all tensors of the
// signature if none were given.
//
// Throws InvalidArgument for names that do not belong to the signature, and arguments that are missing.
std::vector<std::string> take_tensors(const std::shared_ptr<torch::jit::Graph>& graph,
                                      const c10::FunctionSchema& schema, const std::vector<std::string>& names);

}  // namespace gpipe::detail
