#include "gpipe/model/open_module.h"

namespace gpipe::detail {
namespace {

using TensorsOfModule = torch::OrderedDict<std::string, at::Tensor>;

// Derived classes may use the parameters.
struct Derived : torch::nn::Module {
  static TensorsOfModule& parameters_in(torch::nn::Module& module) { return module.*(&Derived::parameters_); }
};

// The buffers are private; an explicit instantiation may name what is.
template <TensorsOfModule torch::nn::Module::*Buffers>
struct Opened {
  friend TensorsOfModule& private_buffers(torch::nn::Module& module) { return module.*Buffers; }
};
TensorsOfModule& private_buffers(torch::nn::Module& module);
template struct Opened<&torch::nn::Module::buffers_>;

}  // namespace

torch::OrderedDict<std::string, at::Tensor>& parameters_in(torch::nn::Module& module) {
  return Derived::parameters_in(module);
}

torch::OrderedDict<std::string, at::Tensor>& buffers_in(torch::nn::Module& module) { return private_buffers(module); }

}  // namespace gpipe::detail
