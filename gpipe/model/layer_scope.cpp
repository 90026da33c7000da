#include "gpipe/model/layer_scope.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "gpipe/model/no_init_scope.h"

namespace gpipe {
namespace {

// Note [Random streams]
// ~~~~~~~~~~~~~~~~~~~~~
// libtorch's operations that draw take an optional generator, and use the process-wide one without it. Stage threads
// would race for that one, and a recompute would draw other numbers. So we hook the operations: the dispatch key
// DeferredInit has no kernels in libtorch and stands above autograd. For it we register a kernel for every operation
// that takes a generator; it puts this thread's stream where the argument is missing and passes the call on to the keys
// below. For all other operations the key falls through. The key is switched on, for this thread, by a LayerScope.
using detail::kHookKey;

thread_local LayerScope* innermost = nullptr;

// On another device a CPU generator would be refused.
bool is_on_cpu(const c10::IValue& value) {
  if (value.isTensor()) return !value.toTensor().defined() || value.toTensor().is_cpu();
  return !value.isDevice() || value.toDevice().is_cpu();
}

void draw_from_stream(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (detail::leave_unfilled(op, stack)) return;
  const auto& arguments = op.schema().arguments();
  const bool on_cpu =
      std::all_of(stack->end() - static_cast<std::ptrdiff_t>(arguments.size()), stack->end(), is_on_cpu);
  for (std::size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].name() != "generator") continue;
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + index];
    if (!value.isNone()) LayerScope::note_given(value.toGenerator());
    if (on_cpu && value.isNone() && LayerScope::current() != nullptr) value = c10::IValue(LayerScope::stream());
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kHookKey), stack);
}

bool takes_a_generator(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.name() == "generator") return true;
  }
  return false;
}

// Registered once, and for good: the libraries are never destroyed, because other threads may still be dispatching at
// exit.
void register_kernels() {
  static auto* fallback = new torch::Library(torch::Library::IMPL, "_", kHookKey, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFallthrough());
  static auto* kernels = new torch::Library(torch::Library::IMPL, "aten", kHookKey, __FILE__, __LINE__);
  const std::string prefix = "aten::";
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.compare(0, prefix.size(), prefix) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !takes_a_generator(op->schema())) continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    kernels->impl((name.name.substr(prefix.size()) + overload).c_str(),
                  torch::CppFunction::makeFromBoxedFunction<&draw_from_stream>());
  }
}

// The finaliser of splitmix64: every bit of the input moves every bit of the output.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t stream_seed(const LayerRun& run) {
  std::uint64_t seed = mix(run.seed);
  for (const std::int64_t part : {run.step, std::int64_t{run.layer}, std::int64_t{run.micro_batch}}) {
    seed = mix(seed ^ static_cast<std::uint64_t>(part));
  }
  return seed;
}

}  // namespace

// The key may be switched on only once its kernels are there.
c10::DispatchKeySet detail::hook_key() {
  static std::once_flag once;
  std::call_once(once, register_kernels);
  return c10::DispatchKeySet(kHookKey);
}

LayerScope::LayerScope(const LayerRun& run) : run_(run), outer_(innermost), guard_(detail::hook_key()) {
  innermost = this;
}

LayerScope::~LayerScope() { innermost = outer_; }

const LayerRun* LayerScope::current() { return innermost != nullptr ? &innermost->run_ : nullptr; }

const at::Generator& LayerScope::stream() {
  at::Generator& generator = innermost->generator_;
  if (!generator.defined()) generator = at::make_generator<at::CPUGeneratorImpl>(stream_seed(innermost->run_));
  return generator;
}

bool LayerScope::has_drawn_elsewhere() { return innermost->has_drawn_elsewhere_; }

void LayerScope::note_given(const at::Generator& generator) {
  if (innermost == nullptr) return;
  const bool is_stream = innermost->generator_.defined() && innermost->generator_ == generator;
  innermost->has_drawn_elsewhere_ |= !is_stream;
}

int LayerScope::next_call() { return innermost->num_calls_++; }

bool is_recomputing() {
  const LayerRun* run = LayerScope::current();
  return run != nullptr && run->recomputing;
}

}  // namespace gpipe
