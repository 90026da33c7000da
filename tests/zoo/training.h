// Trainings of a network of the zoo, in four ways whose results have to be the same bytes.
#pragma once

#include <string>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/model/layer_chain.h"
#include "tests/zoo/network.h"

namespace gpipe::zoo {

// What a training left, by name: the loss of every step, the gradients of the first and of the last one, and the
// parameters and buffers at the end: of large tensors the digits of a hash of their bytes. Parameters that nothing uses
// have undefined gradients.
using Record = NamedTensors;

struct Lengths {
  int num_steps = 3;
  int num_micro_batches = 4;
  std::int64_t rows = 8;
};

// forward and backward() of the whole module, micro-batch after micro-batch. It knows nothing of gpipe. A parameter
// that the module has under several names is there under each of them.
Record train_whole(const Network& network, const Lengths& lengths);

// The layers of the chain one after the other, with the draws of the whole module: without random streams of their own.
Record train_layers(const Network& network, const LayerChain& chain, const Lengths& lengths);

// PlainChain, the oracle of the pipeline's tests.
Record train_plainly(const LayerChain& chain, const Network& network, const Lengths& lengths);

Record train_pipeline(const LayerChain& chain, const Network& network, const Lengths& lengths, PipelineOptions options);

// Trains on two stages, and writes the weights, and what the network then gives for its samples in evaluation, to
// NAME.weights.safetensors and NAME.outputs.safetensors in the folder: load_back.py compares them with what Python
// gives.
void save_trained(const LayerChain& chain, const Network& network, const Lengths& lengths, const std::string& folder);

// The first thing of `expected` that `got` does not have in the same bytes; empty if there is none.
std::string difference(const Record& got, const Record& expected);

// The same, where `whole` may have further names for what `layers` have, and further parameters that have no gradient.
std::string difference_to_whole(const Record& layers, const Record& whole);

}  // namespace gpipe::zoo
