#include "gpipe/model/layer_scope.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "gpipe/error.h"
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
//
// Some operations draw without taking a generator, if they are fused for a device. Of these native_dropout, which
// at::dropout becomes on CUDA, is replaced by the operations of the CPU's dropout, which take one. The others cannot be
// repeated.
using detail::kHookKey;

thread_local LayerScope* innermost = nullptr;

// Nothing if it is none, or on the CPU.
c10::optional<c10::Device> other_device_of(const c10::IValue& value) {
  c10::optional<c10::Device> device;
  if (value.isTensor() && value.toTensor().defined()) device = value.toTensor().device();
  if (value.isDevice()) device = value.toDevice();
  return device && !device->is_cpu() ? device : c10::nullopt;
}

// Of the arguments of a call; the CPU if there is no other.
c10::Device device_of_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (std::size_t index = stack.size() - op.schema().arguments().size(); index < stack.size(); ++index) {
    if (const auto device = other_device_of(stack[index])) return *device;
  }
  return c10::kCPU;
}

void call_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kHookKey), stack);
}

// The meta device has shapes only.
void check_is_repeatable(const c10::OperatorHandle& op, c10::Device device) {
  if (device.is_meta() || !is_recomputing()) return;
  throw Error(fmt::format(
      "{} draws random numbers on {} that a recompute cannot repeat; use gpipe::nn::Dropout in its place, or no "
      "recompute and no rematerialization of this layer",
      op.schema().name(), device.str()));
}

// What a draw without a generator of its own draws from; undefined: from libtorch's.
at::Generator stream_for(const c10::OperatorHandle& op, c10::Device device) {
  if (LayerScope::current() == nullptr) return {};
  if (device.is_cpu()) return LayerScope::stream();
  const at::Generator& generator = LayerScope::stream(device);
  if (!generator.defined()) check_is_repeatable(op, device);
  return generator;
}

void draw_from_stream(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (detail::leave_unfilled(op, stack)) return;
  const auto& arguments = op.schema().arguments();
  for (std::size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].name() != "generator") continue;
    const std::size_t place = stack->size() - arguments.size() + index;
    if (!(*stack)[place].isNone()) {
      LayerScope::note_given((*stack)[place].toGenerator());
      continue;
    }
    const at::Generator generator = stream_for(op, device_of_call(op, *stack));
    if (generator.defined()) (*stack)[place] = c10::IValue(generator);
  }
  call_below(op, keys, stack);
}

// (input, p, train) -> (output, mask), as the CPU's dropout computes it.
void drop_from_stream(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::IValue* const arguments = &(*stack)[stack->size() - 3];
  const at::Tensor input = arguments[0].toTensor();
  const double kept = 1 - arguments[1].toDouble();
  const bool is_training = arguments[2].isNone() || arguments[2].toBool();
  const at::Generator generator = is_training ? stream_for(op, device_of_call(op, *stack)) : at::Generator();
  if (!generator.defined()) {
    call_below(op, keys, stack);
    return;
  }
  torch::jit::drop(*stack, 3);
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool), at::MemoryFormat::Contiguous);
  mask.bernoulli_(kept, generator);
  const at::Tensor scale = mask.to(input.scalar_type());
  stack->emplace_back(input * (kept > 0 ? scale.div_(kept) : scale));
  stack->emplace_back(mask);
}

// What an operation without a generator argument drops elements with.
bool is_probability(const c10::Argument& argument) {
  return argument.name() == "dropout" || argument.name() == "dropout_p";
}

void refuse_to_repeat(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  bool draws = false;
  bool is_training = true;
  for (std::size_t index = 0; index < arguments.size(); ++index) {
    const c10::IValue& value = (*stack)[stack->size() - arguments.size() + index];
    if (is_probability(arguments[index]) && value.isDouble()) draws = value.toDouble() != 0;
    if (arguments[index].name() == "train" && value.isBool()) is_training = value.toBool();
  }
  const c10::Device device = device_of_call(op, *stack);
  if (draws && is_training && !device.is_cpu()) check_is_repeatable(op, device);
  call_below(op, keys, stack);
}

bool takes_a_generator(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.name() == "generator") return true;
  }
  return false;
}

// Whether it drops by itself: an operation that is composed of others does not, and a backward repeats what it is
// given.
bool draws_without_generator(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), is_probability) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         op.schema().name().find("backward") == std::string::npos;
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
    if (!op) continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    const std::string key = name.name.substr(prefix.size()) + overload;
    if (takes_a_generator(op->schema())) {
      kernels->impl(key.c_str(), torch::CppFunction::makeFromBoxedFunction<&draw_from_stream>());
    } else if (key == "native_dropout") {
      kernels->impl(key.c_str(), torch::CppFunction::makeFromBoxedFunction<&drop_from_stream>());
    } else if (draws_without_generator(*op)) {
      kernels->impl(key.c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse_to_repeat>());
    }
  }
}

// The finaliser of splitmix64: every bit of the input moves every bit of the output.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Undefined if libtorch has none for that device.
at::Generator seeded_generator(c10::Device device, std::uint64_t seed) {
  try {
    at::Generator own = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(own.mutex());
    at::Generator generator = own.clone();
    generator.set_current_seed(seed);
    return generator;
  } catch (const c10::Error&) {
    return {};
  }
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

const at::Generator& LayerScope::stream(c10::Device device) {
  if (!device.has_index()) device.set_index(c10::impl::VirtualGuardImpl(device.type()).getDevice().index());
  std::vector<DeviceStream>& known = innermost->device_streams_;
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const DeviceStream& stream) { return stream.device == device; });
  if (found != known.end()) return found->generator;
  known.push_back({device, seeded_generator(device, stream_seed(innermost->run_))});
  return known.back().generator;
}

bool LayerScope::has_drawn_elsewhere() { return innermost->has_drawn_elsewhere_; }

void LayerScope::note_given(const at::Generator& generator) {
  if (innermost == nullptr) return;
  const bool is_stream =
      (innermost->generator_.defined() && innermost->generator_ == generator) ||
      std::any_of(innermost->device_streams_.begin(), innermost->device_streams_.end(),
                  [&](const DeviceStream& stream) { return stream.generator == generator; });
  innermost->has_drawn_elsewhere_ |= !is_stream;
}

int LayerScope::next_call() { return innermost->num_calls_++; }

bool is_recomputing() {
  const LayerRun* run = LayerScope::current();
  return run != nullptr && run->recomputing;
}

}  // namespace gpipe
