#include "gpipe/model/flop_counter.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

namespace gpipe {
namespace {

// Note [Counted operations]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// libtorch calls an observer for every operation, also for those that another one is made of:
//
//   conv2d  ->  convolution  ->  _convolution  ->  whatever the device has
//
// An operation that is nothing but a composition (CompositeImplicitAutograd, here conv2d) is looked through. The first
// one below that, for which libtorch knows a derivative, is the same on every device: it is counted, and what it calls
// in turn is not.
using Inputs = c10::ArrayRef<const c10::IValue>;

// Of the operation that is being counted.
struct Counted : at::ObserverContext {
  bool is_product = false;
  std::int64_t fixed = 0;
  std::int64_t per_element = 0;
};

// What an operation with these inputs counts. Null: it is a composition.
using Rule = void (*)(Counted&, Inputs);

std::int64_t size(const c10::IValue& tensor, std::int64_t dim) { return tensor.toTensor().size(dim); }
std::int64_t num_elements(const c10::IValue& tensor) { return tensor.toTensor().numel(); }

// A view, or an empty tensor.
void count_nothing(Counted& /*counted*/, Inputs /*inputs*/) {}

void count_elements(Counted& counted, Inputs inputs) {
  const bool is_given_a_tensor = std::any_of(
      inputs.begin(), inputs.end(), [](const c10::IValue& input) { return input.isTensor() || input.isTensorList(); });
  counted.per_element = is_given_a_tensor ? 1 : 0;
}

// That argument's last dimension is summed over.
template <int kArgument>
void count_product(Counted& counted, Inputs inputs) {
  counted.is_product = true;
  counted.per_element = 2 * size(inputs[kArgument], -1);
}

// The second argument's, and also its first.
void count_added_batches(Counted& counted, Inputs inputs) {
  count_product<1>(counted, inputs);
  counted.per_element *= size(inputs[1], 0);
}

// What every element of the smaller image, of `elements` in all, is multiplied with: [to, from / groups, kernel...], or
// the other way round for a transposed convolution.
std::int64_t convolution_flops(std::int64_t elements, const c10::IValue& weight) {
  return size(weight, 0) == 0 ? 0 : 2 * elements * (num_elements(weight) / size(weight, 0));
}

void count_convolution(Counted& counted, Inputs inputs) {
  const bool transposed = inputs[6].toBool();
  counted.is_product = true;
  if (transposed) {
    counted.fixed = convolution_flops(num_elements(inputs[0]), inputs[1]);
  } else {
    counted.per_element = convolution_flops(1, inputs[1]);
  }
}

void count_convolution_backward(Counted& counted, Inputs inputs) {
  const bool transposed = inputs[7].toBool();
  const auto wanted = inputs[10].toBoolList();
  const std::int64_t flops = convolution_flops(num_elements(inputs[transposed ? 1 : 0]), inputs[2]);
  counted.is_product = true;
  counted.fixed = flops * ((wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0));
}

const std::map<std::string, Rule>& products() {
  static const auto* all = new std::map<std::string, Rule>{
      {"aten::mm", &count_product<0>},
      {"aten::bmm", &count_product<0>},
      {"aten::mv", &count_product<0>},
      {"aten::dot", &count_product<0>},
      {"aten::addmm", &count_product<1>},
      {"aten::_addmm_activation", &count_product<1>},
      {"aten::addmv", &count_product<1>},
      {"aten::baddbmm", &count_product<1>},
      {"aten::addbmm", &count_added_batches},
      {"aten::convolution", &count_convolution},
      {"aten::_convolution", &count_convolution},
      {"aten::convolution_backward", &count_convolution_backward},
  };
  return *all;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& returned : schema.returns()) {
    if (returned.alias_info() != nullptr && !returned.alias_info()->isWrite()) return true;
  }
  return false;
}

// Views by themselves, by what they do in place, or under an assumed name.
bool makes_no_data(const c10::OperatorName& base) {
  static const auto* names =
      new std::set<std::string>{"aten::_unsafe_view", "aten::resize", "aten::set", "aten::transpose"};
  if (names->count(base.name) > 0) return true;
  if (base.name.compare(0, 11, "aten::empty") == 0 || base.name.compare(0, 15, "aten::new_empty") == 0) return true;
  const auto op = c10::Dispatcher::singleton().findSchema(base);
  return op && is_view(op->schema());
}

Rule find_rule(const c10::OperatorName& name) {
  std::string base = name.name;
  if (base.back() == '_') base.pop_back();  // in place
  const auto product = products().find(base);
  if (product != products().end()) return product->second;
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  if (!op) return &count_elements;
  if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return nullptr;
  return makes_no_data({base, name.overload_name}) ? &count_nothing : &count_elements;
}

struct State {
  std::int64_t total = 0;
  std::int64_t product_total = 0;
  int num_counters = 0;
  at::CallbackHandle callback = 0;
  bool in_counted = false;
  std::unordered_map<c10::OperatorName, Rule> rules;
};

State& state() {
  thread_local State of_thread;
  return of_thread;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  State& now = state();
  const auto name = now.in_counted ? c10::nullopt : function.operator_name();
  if (!name) return nullptr;
  auto known = now.rules.find(*name);
  if (known == now.rules.end()) known = now.rules.emplace(*name, find_rule(*name)).first;
  if (known->second == nullptr) return nullptr;
  auto counted = std::make_unique<Counted>();
  known->second(*counted, function.inputs());
  now.in_counted = true;
  return counted;
}

std::int64_t elements_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.numel() : 0;
}

std::int64_t elements_of(const c10::IValue& output) {
  if (output.isTensor()) return elements_of(output.toTensor());
  std::int64_t elements = 0;
  if (output.isTensorList()) {
    for (const at::Tensor& tensor : output.toTensorVector()) elements += elements_of(tensor);
  }
  return elements;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) return;
  State& now = state();
  now.in_counted = false;
  const auto& counted = static_cast<const Counted&>(*context);
  std::int64_t flops = counted.fixed;
  if (counted.per_element > 0) {
    for (const c10::IValue& output : function.outputs()) flops += counted.per_element * elements_of(output);
  }
  now.total += flops;
  if (counted.is_product) now.product_total += flops;
}

}  // namespace

FlopCounter::FlopCounter() {
  reset();
  State& now = state();
  if (now.num_counters++ > 0) return;
  now.callback = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                                .needsInputs(true)
                                                .needsOutputs(true)
                                                .scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  State& now = state();
  if (--now.num_counters == 0) at::removeCallback(now.callback);
}

std::int64_t FlopCounter::flops() const { return state().total - start_; }

std::int64_t FlopCounter::product_flops() const { return state().product_total - product_start_; }

void FlopCounter::reset() {
  start_ = state().total;
  product_start_ = state().product_total;
}

}  // namespace gpipe
