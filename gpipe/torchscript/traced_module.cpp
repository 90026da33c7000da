#include "gpipe/torchscript/traced_module.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/torchscript/script_error.h"

namespace gpipe::detail {
namespace {

using c10::IValue;
using torch::jit::Stack;

// The same tree of submodules, with the same tensors.
torch::jit::Module mirror(const torch::nn::Module& module) {
  torch::jit::Module result("__torch__.Recorded");
  result.register_attribute("training", c10::BoolType::get(), module.is_training());
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    result.register_parameter(parameter.key(), parameter.value(), /*is_buffer=*/false);
  }
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
    result.register_buffer(buffer.key(), buffer.value());
  }
  for (const auto& child : module.named_children()) {
    result.register_module(child.key(), mirror(*child.value()));
  }
  return result;
}

// Puts the default generator back.
class SameDraws {
 public:
  SameDraws() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~SameDraws() { rewind(); }
  SameDraws(const SameDraws&) = delete;
  SameDraws& operator=(const SameDraws&) = delete;

  void rewind() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  at::Tensor state_;
};

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
  return copies;
}

// With the last row once more.
Tensors with_one_row_more(const Tensors& tensors) {
  Tensors longer;
  for (const at::Tensor& tensor : tensors) {
    longer.push_back(tensor.defined() && tensor.dim() > 0 ? at::cat({tensor, tensor.narrow(0, -1, 1)}) : tensor);
  }
  return longer;
}

std::shared_ptr<torch::jit::Graph> record(const Layer& module, const Tensors& sample, torch::jit::Module& traced) {
  Stack inputs(sample.begin(), sample.end());
  std::vector<std::string> names;
  for (std::size_t index = 0; index < sample.size(); ++index) {
    names.push_back(sample.size() == 1 ? "x" : fmt::format("x{}", index));
  }
  const auto run = [&](Stack stack) {
    Tensors tensors;
    for (const IValue& value : stack) tensors.push_back(value.toTensor());
    Tensors outputs = module.forward(std::move(tensors));
    if (outputs.size() == 1) return Stack{outputs[0]};
    return Stack{c10::ivalue::Tuple::create(std::vector<IValue>(outputs.begin(), outputs.end()))};
  };
  const auto no_name = [](const at::Tensor&) { return std::string(); };
  return torch::jit::tracer::trace(std::move(inputs), run, no_name, /*strict=*/true, /*force_outplace=*/false, &traced,
                                   names)
      .first->graph;
}

bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  if (!one.defined() || !other.defined()) return one.defined() == other.defined();
  if (one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) return false;
  const at::Tensor left = one.detach().cpu().contiguous();
  const at::Tensor right = other.detach().cpu().contiguous();
  return left.numel() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0;
}

constexpr const char* kRemedy =
    "what it computes from sizes, values or members in C++ is fixed in the record: write sizes as -1, view({-1, 10}) "
    "or "
    "flatten(1), choose with torch::where, and keep state in registered buffers; or put its layers into a "
    "gpipe::LayerChain by hand";

// The results of the module and of what was recorded, with the same draws.
void check(const Layer& module, torch::jit::Module& traced, const Tensors& sample, const char* what) {
  const ChainLayer layer{0, "module", module};
  SameDraws draws;
  Tensors expected;
  {
    const Sandbox sandbox({layer});
    expected = module.forward(copies_of(sample));
  }
  draws.rewind();
  const Sandbox sandbox({layer});
  Tensors got;
  try {
    const Tensors copies = copies_of(sample);
    Stack stack = {traced._ivalue()};
    stack.insert(stack.end(), copies.begin(), copies.end());
    const auto graph = traced.get_method("forward").graph();
    torch::jit::InterpreterState(torch::jit::Code(graph, "traced")).run(stack);
    if (stack[0].isTensor()) {
      got = {stack[0].toTensor()};
    } else {
      for (const IValue& element : stack[0].toTupleRef().elements()) got.push_back(element.toTensor());
    }
  } catch (const std::exception& error) {
    throw InvalidArgument(
        fmt::format("the record of the module fails on {}: {}; {}", what, script_error(error.what()), kRemedy));
  }
  bool is_same = got.size() == expected.size();
  for (std::size_t index = 0; is_same && index < got.size(); ++index) is_same = same_bits(got[index], expected[index]);
  if (is_same) return;
  throw InvalidArgument(
      fmt::format("the record of the module gives other results than the module on {}; {}", what, kRemedy));
}

}  // namespace

torch::jit::Module trace_module(const Layer& module, const Tensors& sample) {
  const ChainLayer layer{0, "module", module};
  torch::jit::Module traced = mirror(*module.module);
  {
    const Sandbox sandbox({layer});
    const SameDraws draws;
    const at::NoGradGuard no_grad;
    module.forward(copies_of(sample));  // what it throws by itself is its own affair
    try {
      const auto graph = record(module, copies_of(sample), traced);
      const auto name = c10::QualifiedName(*traced.type()->name(), "forward");
      traced.type()->addMethod(traced._ivalue()->compilation_unit()->create_function(name, graph));
    } catch (const std::exception& error) {
      throw InvalidArgument(fmt::format("the module cannot be recorded: {}; {}", script_error(error.what()), kRemedy));
    }
  }
  const at::NoGradGuard no_grad;
  check(module, traced, sample, "the sample");
  check(module, traced, with_one_row_more(sample), "a sample of one row more");
  return traced;
}

}  // namespace gpipe::detail
