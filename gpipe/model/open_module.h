// The parameters and buffers of a module as it holds them itself: registering has no counterpart that takes one out
// again.
#pragma once

#include <torch/nn/module.h>

#include <string>

namespace gpipe::detail {

torch::OrderedDict<std::string, at::Tensor>& parameters_in(torch::nn::Module& module);
torch::OrderedDict<std::string, at::Tensor>& buffers_in(torch::nn::Module& module);

}  // namespace gpipe::detail
