// What the ranks of one training have to be given alike, as texts for them to compare: options, and what is in the
// files that they read, whose paths may differ from host to host.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/gpipe.h"
#include "train/task.h"

namespace gpipe::train {

enum class Agreement {
  kValue,     // every rank has the same value: what holds for an option that nothing else is said about
  kPresence,  // every rank is given it, or none is; what it names may be elsewhere on each
  kNone,      // each rank may have its own
};

// Of the option with that name, such as "--lr".
Agreement agreement_on(std::string_view option);

// One text an option of the command that has to be alike, such as "--lr 0.1": its value at this moment, given or not.
// REQUIRES: the options were added by an OptionGroup, and what they are read into still exists.
std::vector<std::string> agreed_options(CLI::App& command);

// Of names, types, shapes and values.
std::string hash_of_tensors(const NamedTensors& tensors);

// Of the model that --weights names. Reads all of it.
std::string agreed_weights(const Safetensors& content);

// What `options`, such as "--text", have led to: for training, and for evaluation.
std::string agreed_training_data(const std::string& options, const Task& task);
std::string agreed_test_data(const std::string& options, const Task& task);

}  // namespace gpipe::train
