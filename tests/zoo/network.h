// One network of the zoo: a TorchScript file with a mini-batch of samples and targets, as export_zoo.py writes them.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::zoo {

struct Network {
  std::string name;
  std::string title;
  std::string file;
  std::string exported;                  // "script" or "trace"
  std::vector<std::string> input_names;  // in the order in which forward takes them, such as "x" or "features.mask"
  Tensors inputs;
  Tensors targets;

  // The first rows of the mini-batch.
  Tensors first_inputs(std::int64_t rows) const;
  Tensors first_targets(std::int64_t rows) const;

  torch::jit::Module load() const;
  LayerChain cut() const;
};

// Throws CheckpointError for files that are not sound.
Network read_network(const std::string& folder, const std::string& name);

// The names in the folder's models.txt.
std::vector<std::string> read_names(const std::string& folder);

// What forward of the whole module takes: tuples, lists and dictionaries are made of the tensors that are named after
// them.
std::vector<c10::IValue> arguments_of(const torch::jit::Module& module, const std::vector<std::string>& names,
                                      const Tensors& tensors);

// The tensors of an output, as a chain gives them: those of tuples, lists and dictionaries one after the other.
Tensors flatten(const c10::IValue& output);

// Cross-entropy of all outputs that fit class targets, and the mean square of the others, so that every output has a
// gradient. For targets that are no classes, the first output's mean squared error.
LossValue loss(const Tensors& outputs, const Tensors& targets);

}  // namespace gpipe::zoo
