#include "gpipe/model/layer.h"

#include <fmt/format.h>

namespace gpipe {
namespace detail {

void check_num_tensors(std::size_t got, std::size_t expected) {
  if (got == expected) return;
  throw InvalidArgument(
      fmt::format("the layer takes {} tensor{}, but gets {}", expected, expected == 1 ? "" : "s", got));
}

}  // namespace detail

namespace {

constexpr std::size_t kMaxTensors = 8;

template <std::size_t... Index>
auto tuple_of(std::index_sequence<Index...>) -> std::tuple<decltype(static_cast<void>(Index), at::Tensor())...>;
template <std::size_t Size>
using TensorTuple = decltype(tuple_of(std::make_index_sequence<Size>()));

template <std::size_t Size = 2>
Tensors unpack(torch::nn::AnyValue& value) {
  if constexpr (Size > kMaxTensors) {
    throw InvalidArgument(
        "the layer returns neither a tensor, a std::tuple of up to 8 tensors, nor a std::vector of tensors");
  } else {
    if (auto* tuple = value.try_get<TensorTuple<Size>>()) return detail::to_tensors(std::move(*tuple));
    return unpack<Size + 1>(value);
  }
}

Tensors to_tensors(torch::nn::AnyValue value) {
  if (auto* tensor = value.try_get<at::Tensor>()) return {*tensor};
  if (auto* tensors = value.try_get<Tensors>()) return std::move(*tensors);
  return unpack(value);
}

template <std::size_t Size = 2>
torch::nn::AnyValue pack(const Tensors& tensors) {
  if constexpr (Size > kMaxTensors) {
    throw InvalidArgument(
        fmt::format("{} tensors travel between two layers; at most {} can", tensors.size(), kMaxTensors));
  } else {
    if (tensors.size() == Size) return torch::nn::AnyValue(detail::to_tuple<TensorTuple<Size>>(tensors));
    return pack<Size + 1>(tensors);
  }
}

// How a module of unknown type takes its input.
enum class Packing { kUnknown, kTensor, kTuple, kVector };

torch::nn::AnyValue pack_as(Packing packing, const Tensors& tensors) {
  if (packing == Packing::kTensor) return torch::nn::AnyValue(tensors.front());
  return packing == Packing::kTuple ? pack(tensors) : torch::nn::AnyValue(tensors);
}

Tensors call_any(torch::nn::AnyModule& module, torch::nn::AnyValue value) {
  return to_tensors(module.any_forward(std::move(value)));
}

// AnyModule does not say what it takes; it refuses another type before it calls the module.
bool refuses_the_type(const c10::Error& error) {
  return std::string(error.what()).find("Expected argument #0 to be of type") != std::string::npos;
}

}  // namespace

Layer make_layer(torch::nn::AnyModule module) {
  auto shared = std::make_shared<torch::nn::AnyModule>(std::move(module));
  auto known = std::make_shared<Packing>(Packing::kUnknown);
  const auto forward = [shared, known](Tensors tensors) {
    if (*known != Packing::kUnknown) return call_any(*shared, pack_as(*known, tensors));
    const Packing first = tensors.size() == 1 ? Packing::kTensor : Packing::kTuple;
    try {
      Tensors result = call_any(*shared, pack_as(first, tensors));
      *known = first;
      return result;
    } catch (const c10::Error& error) {
      if (!refuses_the_type(error)) throw;
    }
    Tensors result = call_any(*shared, pack_as(Packing::kVector, tensors));
    *known = Packing::kVector;
    return result;
  };
  return {shared->ptr(), forward};
}

}  // namespace gpipe
