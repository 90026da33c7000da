#include "tests/devices/late_kernels.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/devices/late_device.h"
#include "tests/devices/late_guard.h"
#include "tests/devices/late_memory.h"
#include "tests/devices/late_stream.h"

namespace gpipe::test {

at::Tensor on_late_device(const at::Tensor& tensor) {
  void* const data = tensor.numel() == 0 ? nullptr : LateMemory::alias_of(tensor.data_ptr());
  return at::from_blob(data, tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

namespace {

using c10::IValue;
using Stack = torch::jit::Stack;

bool is_late(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kLateDevice; }

void enqueue_here(std::function<void()> task) { LateStream::of(LateGuard::current_stream()).enqueue(std::move(task)); }

void synchronize_here() { LateGuard().synchronizeStream(LateGuard::current_stream()); }

// Note [Kernels that run later]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// One boxed function is the kernel of every operation that has one on the CPU. At the call it finds out what the
// results look like, by a trial on zeros (once for each operation and shapes of its arguments), makes tensors for them,
// and enqueues the CPU's operation on aliases of the arguments. As with kernels of CUDA, nothing that is enqueued keeps
// a tensor alive.

template <typename Map>
IValue map_tensors(const IValue& value, const Map& map) {
  if (value.isTensor()) return IValue(map(value.toTensor()));
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) mapped.push_back(map(tensor));
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<c10::optional<at::Tensor>> mapped;
    for (const c10::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      mapped.push_back(tensor ? c10::optional<at::Tensor>(map(*tensor)) : tensor);
    }
    return mapped;
  }
  return value.isDevice() ? IValue(c10::Device(c10::kCPU)) : value;
}

template <typename Use>
void for_each_tensor(const IValue& value, const Use& use) {
  map_tensors(value, [&](const at::Tensor& tensor) {
    use(tensor);
    return tensor;
  });
}

// A number in a program, unlike a tensor without dimensions, does not decide on the type of a result.
at::Tensor as_number_if(const at::Tensor& original, at::Tensor copy) {
  if (original.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

at::Tensor zeros_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor zeros =
      at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()).device(c10::kCPU));
  if (zeros.numel() != 0) std::memset(zeros.storage().data(), 0, zeros.storage().nbytes());
  return as_number_if(tensor, zeros);
}

// What a kernel is started with: aliases; numbers that are on the host are read at the call. Convolutions choose another
// algorithm if nothing requires a gradient.
at::Tensor kernel_argument(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (!is_late(tensor)) return as_number_if(tensor, tensor.detach().clone());
  return on_late_device(tensor).set_requires_grad(tensor.requires_grad());
}

// The argument that result `index` is, changed in place; -1 if it is a new tensor.
int argument_of_result(const c10::FunctionSchema& schema, std::size_t index) {
  const auto* const result = schema.returns()[index].alias_info();
  if (result == nullptr || !result->isWrite()) return -1;
  for (std::size_t argument = 0; argument < schema.arguments().size(); ++argument) {
    const auto* const given = schema.arguments()[argument].alias_info();
    if (given != nullptr && given->isWrite() && given->beforeSets() == result->beforeSets()) {
      return static_cast<int>(argument);
    }
  }
  return -1;
}

// Below autograd, on tensors of the CPU.
void call_on_cpu(const c10::OperatorHandle& op, Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
  const c10::impl::ExcludeDispatchKeyGuard no_views(c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView));
  op.callBoxed(&stack);
}

// What an operation gives for arguments of these shapes: the new tensors, as to their shapes, and other results.
struct Pattern {
  struct Result {
    IValue value;
    bool is_tensor = false;
    bool is_list = false;
    std::vector<at::Tensor> like;
  };
  std::vector<Result> results;
};

std::string pattern_key(const c10::FunctionSchema& schema, const Stack& arguments) {
  std::ostringstream key;
  key << schema.name() << "." << schema.overload_name();
  for (const IValue& value : arguments) {
    key << ";";
    if (value.isTensor() || value.isTensorList() || value.isOptionalTensorList()) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        key << "|";
        if (!tensor.defined()) return;
        key << tensor.scalar_type() << tensor.sizes() << tensor.strides();
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) key << "number";
      });
    } else if (!value.isGenerator()) {
      key << value;
    }
  }
  return key.str();
}

Pattern try_on_zeros(const c10::OperatorHandle& op, const Stack& arguments) {
  Stack stack;
  for (const IValue& value : arguments) {
    stack.push_back(value.isGenerator() ? IValue() : map_tensors(value, zeros_of));
  }
  call_on_cpu(op, stack);
  Pattern pattern;
  for (const IValue& value : stack) {
    Pattern::Result result;
    result.value = value;
    result.is_list = value.isTensorList();
    result.is_tensor = value.isTensor() || result.is_list;
    if (result.is_list) result.like = value.toTensorVector();
    if (value.isTensor()) result.like = {value.toTensor()};
    pattern.results.push_back(std::move(result));
  }
  return pattern;
}

Pattern pattern_of(const c10::OperatorHandle& op, const Stack& arguments) {
  static auto* const known = new std::map<std::string, Pattern>();
  static auto* const mutex = new std::mutex();
  const std::string key = pattern_key(op.schema(), arguments);
  {
    const std::lock_guard<std::mutex> lock(*mutex);
    if (const auto found = known->find(key); found != known->end()) return found->second;
  }
  Pattern pattern = try_on_zeros(op, arguments);
  const std::lock_guard<std::mutex> lock(*mutex);
  return known->emplace(key, std::move(pattern)).first->second;
}

// As CUDA's operations check: everything is on one device, but for numbers and the indices of an indexing.
c10::Device common_device(const c10::FunctionSchema& schema, const Stack& arguments) {
  static const std::set<std::string> takes_indices = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"};
  c10::optional<c10::Device> device;
  for (const IValue& value : arguments) {
    if (!device && value.isDevice() && value.toDevice().type() == kLateDevice) device = value.toDevice();
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!is_late(tensor)) return;
      TORCH_CHECK(!device || !device->has_index() || *device == tensor.device(), schema.name(), " takes tensors of ",
                  *device, " and of ", tensor.device());
      device = tensor.device();
    });
  }
  for (const IValue& value : arguments) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      TORCH_CHECK(!tensor.defined() || is_late(tensor) || tensor.dim() == 0 || takes_indices.count(schema.name()) != 0,
                  schema.name(), " takes tensors of the late device and of ", tensor.device());
    });
  }
  return device && device->has_index() ? *device : LateGuard().getDevice();
}

// How many elements the results have depends on the values of the arguments: the host has to wait for them.
bool reads_values(const c10::FunctionSchema& schema) {
  static const std::set<std::string> names = {"aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
                                              "aten::bincount"};
  return names.count(schema.name()) != 0;
}

// A call on its way.
struct Launch {
  c10::OperatorHandle op;
  Stack arguments;
  std::vector<std::vector<at::Tensor>> new_tensors;  // by result: aliases of where the values go
  bool with_grad = false;                            // at the call

  void run() {
    {
      const at::AutoGradMode grad_mode(with_grad);
      call_on_cpu(op, arguments);
    }
    const at::NoGradGuard no_grad;
    for (std::size_t result = 0; result < arguments.size(); ++result) {
      auto next = new_tensors[result].begin();
      if (next == new_tensors[result].end()) continue;
      for_each_tensor(arguments[result], [&](const at::Tensor& tensor) {
        if (tensor.defined()) next->copy_(tensor);
        ++next;
      });
    }
  }
};

at::Tensor make_like(const at::Tensor& like, c10::Device device) {
  if (!like.defined()) return like;
  return at::empty_strided(like.sizes(), like.strides(), at::TensorOptions(like.scalar_type()).device(device));
}

void run_later(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const Stack given(stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size()), stack->end());
  torch::jit::drop(*stack, given.size());
  const c10::DeviceGuard guard(common_device(schema, given));
  const auto launch = std::make_shared<Launch>(Launch{op, {}, {}, at::GradMode::is_enabled()});
  for (std::size_t index = 0; index < given.size(); ++index) {
    const bool needs_generator = schema.arguments()[index].name() == "generator" && given[index].isNone();
    launch->arguments.push_back(needs_generator ? IValue(at::globalContext().defaultGenerator(guard.current_device()))
                                                : map_tensors(given[index], kernel_argument));
  }
  if (reads_values(schema)) {
    synchronize_here();
    call_on_cpu(op, launch->arguments);
    for (const IValue& value : launch->arguments) {
      stack->push_back(value.isTensor() ? IValue(value.toTensor().to(guard.current_device())) : value);
    }
    return;
  }
  bool makes_results = false;
  for (std::size_t index = 0; index < schema.returns().size(); ++index) {
    makes_results |= argument_of_result(schema, index) < 0;
  }
  const Pattern pattern = makes_results ? pattern_of(op, given) : Pattern();
  for (std::size_t index = 0; index < schema.returns().size(); ++index) {
    std::vector<at::Tensor>& aliases = launch->new_tensors.emplace_back();
    if (const int argument = argument_of_result(schema, index); argument >= 0) {
      stack->push_back(given[static_cast<std::size_t>(argument)]);
      continue;
    }
    const Pattern::Result& result = pattern.results[index];
    std::vector<at::Tensor> made;
    for (const at::Tensor& like : result.like) {
      made.push_back(make_like(like, guard.current_device()));
      aliases.push_back(made.back().defined() ? on_late_device(made.back()) : made.back());
    }
    stack->push_back(result.is_list ? IValue(made) : result.is_tensor ? IValue(made.front()) : result.value);
  }
  enqueue_here([launch] { launch->run(); });
}

class LateAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const override {
    check_late_device_works();
    const c10::Stream stream = LateGuard::current_stream();
    void* const data = bytes == 0 ? nullptr : LateMemory::of(stream.device_index()).take(bytes, stream);
    return {data, data,
            [](void* pointer) {
              if (pointer != nullptr) LateMemory::of(LateMemory::device_of(pointer)).give(pointer);
            },
            stream.device()};
  }
};

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::optional<at::ScalarType> type,
                         c10::optional<at::Layout> /*layout*/, c10::optional<at::Device> device,
                         c10::optional<bool> /*is_pinned*/) {
  static auto* const allocator = new LateAllocator();
  const c10::OptionalDeviceGuard guard(device && device->has_index() ? device : c10::nullopt);
  return at::detail::empty_strided_generic(sizes, strides, allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           type.value_or(at::kFloat));
}

at::Tensor empty(at::IntArrayRef sizes, c10::optional<at::ScalarType> type, c10::optional<at::Layout> layout,
                 c10::optional<at::Device> device, c10::optional<bool> is_pinned,
                 c10::optional<at::MemoryFormat> format) {
  at::Tensor tensor = empty_strided(sizes, c10::contiguous_strides(sizes), type, layout, device, is_pinned);
  if (format && *format != at::MemoryFormat::Contiguous) tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return tensor;
}

// Of as many bytes without gaps on both sides. At least one is on the device.
void copy_bytes(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  void* const target = LateMemory::alias_of(to.data_ptr());
  void* const source = LateMemory::alias_of(from.data_ptr());
  const auto copy = [target, source, bytes = to.nbytes()] {
    pass_copy_time();
    std::memcpy(target, source, bytes);
  };
  if (is_late(from) && is_late(to)) {  // in the source's stream, between what the target's stream does before and after
    const c10::Stream there = LateGuard::current_stream(from.device().index());
    const c10::Stream here = LateGuard::current_stream(to.device().index());
    const auto wait = [](const c10::Stream& waiting, const c10::Stream& first) {
      const auto point = std::make_shared<LatePoint>();
      LateStream::of(first).enqueue([point] { point->reach(); });
      LateStream::of(waiting).enqueue([point] { point->wait(); });
    };
    wait(there, here);
    LateStream::of(there).enqueue(copy);
    wait(here, there);
    return;
  }
  const at::Tensor& on_device = is_late(to) ? to : from;
  const c10::DeviceGuard guard(on_device.device());
  const std::shared_ptr<void> pinned = PinnedMemory::holder_of(is_late(to) ? source : target);
  if (pinned != nullptr) {
    enqueue_here([copy, pinned] { copy(); });
    if (!non_blocking) synchronize_here();
  } else if (is_late(to)) {
    auto staged = std::make_shared<std::vector<char>>(to.nbytes());
    std::memcpy(staged->data(), source, staged->size());
    enqueue_here([staged, target] { std::memcpy(target, staged->data(), staged->size()); });
    if (!non_blocking) synchronize_here();
  } else {
    enqueue_here(copy);
    synchronize_here();
  }
}

// As CUDA's copy without peer access: tensors that cannot be copied as they are get a form that can on their own
// device.
at::Tensor& copy_(at::Tensor& to, const at::Tensor& given, bool non_blocking) {
  if (to.numel() == 0) return to;
  const at::Tensor from = given.expand_as(to);
  if (is_late(to) && is_late(from) && to.device() == from.device()) {
    const c10::DeviceGuard guard(to.device());
    enqueue_here([target = on_late_device(to), source = on_late_device(from)] { at::Tensor(target).copy_(source); });
    return to;
  }
  if (to.scalar_type() == from.scalar_type() && to.strides() == from.strides() && to.is_non_overlapping_and_dense()) {
    copy_bytes(to, from, non_blocking);
    return to;
  }
  const at::Tensor close = from.to(to.scalar_type()).contiguous();
  const at::Tensor arrived = to.is_contiguous() ? to : at::empty(to.sizes(), to.options());
  copy_bytes(arrived, close, non_blocking);
  if (!arrived.is_same(to)) to.copy_(arrived, non_blocking);
  return to;
}

at::Tensor strided_view(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                        c10::optional<std::int64_t> offset) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                             tensor.key_set(), tensor.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(offset.value_or(tensor.storage_offset()));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return view;
}

at::Tensor view(const at::Tensor& tensor, at::IntArrayRef sizes) {
  const std::vector<std::int64_t> whole = at::infer_size(sizes, tensor.numel());
  const auto strides = at::detail::computeStride(tensor.sizes(), tensor.strides(), whole);
  TORCH_CHECK(strides.has_value(), "this view needs a copy");
  return strided_view(tensor, whole, *strides, c10::nullopt);
}

at::Tensor reshape_alias(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return strided_view(tensor, sizes, strides, c10::nullopt);
}

at::Scalar value_of(const at::Tensor& tensor) { return tensor.cpu().item(); }

void record_stream(at::Tensor& tensor, at::Stream stream) {
  LateGuard().recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

bool is_pinned(const at::Tensor& tensor, c10::optional<at::Device> /*device*/) {
  return PinnedMemory::holder_of(tensor.data_ptr()) != nullptr;
}

at::Tensor pin_memory(const at::Tensor& tensor, c10::optional<at::Device> /*device*/) {
  return at::empty_like(tensor, tensor.options().pinned_memory(true)).copy_(tensor);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("as_strided", strided_view);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("_local_scalar_dense", value_of);
  library.impl("record_stream", record_stream);
  library.impl("is_pinned", is_pinned);
  library.impl("_pin_memory", pin_memory);
  // They have no kernel of the CPU's own, and would choose one of CUDA's libraries.
  library.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&run_later>());
  library.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&run_later>());
}

// Its results would be views, but the boxed kernel makes new tensors.
bool gives_views(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

[[maybe_unused]] const bool are_registered = [] {
  // They would give a tensor other memory.
  static const std::set<std::string> refused = {"aten::set_", "aten::resize_", "aten::is_set_to"};
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  const std::string prefix = "aten::";
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.compare(0, prefix.size(), prefix) != 0 || refused.count(name.name) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || gives_views(op->schema()) || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
      continue;
    }
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    library->impl((name.name.substr(prefix.size()) + overload).c_str(),
                  torch::CppFunction::makeFromBoxedFunction<&run_later>());
  }
  return true;
}();

}  // namespace
}  // namespace gpipe::test
