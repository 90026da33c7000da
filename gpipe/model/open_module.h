// OpenModule: the parameters and buffers of a module as it holds them itself. Registering has no counterpart that takes
// one out again.
#pragma once

#include <torch/nn/module.h>

#include <string>

namespace gpipe::detail {

using NamedTensorsOfModule = torch::OrderedDict<std::string, at::Tensor>;

// Derived classes may use the parameters; the buffers are private, which an explicit instantiation may name.
template <NamedTensorsOfModule torch::nn::Module::*Buffers>
struct BuffersOfModule {
  friend NamedTensorsOfModule& open_buffers(torch::nn::Module& module) { return module.*Buffers; }
};
template struct BuffersOfModule<&torch::nn::Module::buffers_>;
NamedTensorsOfModule& open_buffers(torch::nn::Module& module);

struct OpenModule : torch::nn::Module {
  static NamedTensorsOfModule& parameters_of(torch::nn::Module& module) { return module.*(&OpenModule::parameters_); }
  static NamedTensorsOfModule& buffers_of(torch::nn::Module& module) { return open_buffers(module); }
};

}  // namespace gpipe::detail
