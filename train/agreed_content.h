// What the files that ranks read have in them, as a text for the ranks to compare: their paths may differ from host to
// host.
#pragma once

#include <string>

#include "gpipe/gpipe.h"
#include "train/task.h"

namespace gpipe::train {

// Of a model that `option` names. Reads all of it.
std::string agreed_weights(const std::string& option, const Safetensors& content);

// What `options`, such as "--text", have led to: for training, and for evaluation.
std::string agreed_training_data(const std::string& options, const Task& task);
std::string agreed_test_data(const std::string& options, const Task& task);

}  // namespace gpipe::train
