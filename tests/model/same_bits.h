// What "the same bits" means in all tests: the same type, the same sizes and the same bytes. So -0.0 is not 0.0, and a
// NaN is the same as a NaN of the same bytes.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace gpipe::test {

// A tensor as one run of bytes that can be read on the host.
inline at::Tensor readable(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
}

// Element `index` of a readable tensor: its value, and its bytes as one number.
inline std::string element_text(const at::Tensor& values, std::int64_t index) {
  char text[96];
  const at::Scalar value = values.view(-1)[index].item();
  if (value.isComplex()) {
    const auto number = value.toComplexDouble();
    std::snprintf(text, sizeof text, "%.17g%+.17gi", number.real(), number.imag());
  } else if (value.isFloatingPoint()) {
    std::snprintf(text, sizeof text, "%.17g", value.toDouble());
  } else {
    std::snprintf(text, sizeof text, "%lld", static_cast<long long>(value.toLong()));
  }
  std::string result = std::string(text) + " (0x";
  const auto size = static_cast<std::size_t>(values.itemsize());
  const auto* bytes = static_cast<const unsigned char*>(values.data_ptr()) + size * static_cast<std::size_t>(index);
  for (std::size_t byte = size; byte-- > 0;) {
    std::snprintf(text, sizeof text, "%02x", bytes[byte]);
    result += text;
  }
  return result + ")";
}

// For EXPECT_TRUE and EXPECT_FALSE. Says where the first difference is, with both values and their bytes. Undefined
// tensors are the same as each other; strides, devices and gradients do not count.
inline ::testing::AssertionResult same_bits(const at::Tensor& got, const at::Tensor& expected) {
  if (!got.defined() && !expected.defined()) return ::testing::AssertionSuccess();
  if (!got.defined() || !expected.defined()) {
    return ::testing::AssertionFailure() << (got.defined() ? "there should be no tensor" : "there is no tensor");
  }
  if (got.scalar_type() != expected.scalar_type()) {
    return ::testing::AssertionFailure() << "the type is " << got.scalar_type() << ", expected "
                                         << expected.scalar_type();
  }
  if (got.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << "the sizes are " << got.sizes() << ", expected " << expected.sizes();
  }
  if (got.numel() == 0) return ::testing::AssertionSuccess();
  const at::Tensor one = readable(got);
  const at::Tensor other = readable(expected);
  if (std::memcmp(one.data_ptr(), other.data_ptr(), one.nbytes()) == 0) return ::testing::AssertionSuccess();
  const auto size = static_cast<std::size_t>(one.itemsize());
  std::int64_t first = -1;
  std::int64_t num_different = 0;
  for (std::int64_t index = 0; index < one.numel(); ++index) {
    const std::size_t offset = size * static_cast<std::size_t>(index);
    if (std::memcmp(static_cast<const char*>(one.data_ptr()) + offset,
                    static_cast<const char*>(other.data_ptr()) + offset, size) == 0) {
      continue;
    }
    if (++num_different == 1) first = index;
  }
  std::string place;
  std::int64_t rest = first;
  for (std::int64_t dimension = one.dim(); dimension-- > 0; rest /= one.size(dimension)) {
    place = (dimension > 0 ? ", " : "") + std::to_string(rest % one.size(dimension)) + place;
  }
  return ::testing::AssertionFailure() << "element [" << place << "] is " << element_text(one, first) << ", expected "
                                       << element_text(other, first) << "; " << num_different << " of " << one.numel()
                                       << " elements differ";
}

inline ::testing::AssertionResult same_bits(const std::vector<at::Tensor>& got,
                                            const std::vector<at::Tensor>& expected) {
  if (got.size() != expected.size()) {
    return ::testing::AssertionFailure() << "there are " << got.size() << " tensors, expected " << expected.size();
  }
  for (std::size_t index = 0; index < got.size(); ++index) {
    const ::testing::AssertionResult same = same_bits(got[index], expected[index]);
    if (!same) return ::testing::AssertionFailure() << "tensor " << index << ": " << same.message();
  }
  return ::testing::AssertionSuccess();
}

inline void expect_same_bits(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(same_bits(got, expected)) << what;
}

// Two maps of tensors by name: the same names, and the same bits under each.
template <typename Values>
void expect_same_values(const Values& got, const Values& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_EQ(got.count(name), 1U) << name;
    EXPECT_TRUE(same_bits(got.at(name), tensor)) << name;
  }
}

// Parameters, their gradients and buffers.
inline void expect_same_bits(const torch::nn::Module& got, const torch::nn::Module& expected) {
  const auto parameters = got.named_parameters();
  ASSERT_EQ(parameters.size(), expected.named_parameters().size());
  for (const auto& parameter : expected.named_parameters()) {
    expect_same_bits(parameters[parameter.key()], parameter.value(), parameter.key());
    expect_same_bits(parameters[parameter.key()].grad(), parameter.value().grad(), "gradient of " + parameter.key());
  }
  const auto buffers = got.named_buffers();
  ASSERT_EQ(buffers.size(), expected.named_buffers().size());
  for (const auto& buffer : expected.named_buffers()) {
    expect_same_bits(buffers[buffer.key()], buffer.value(), buffer.key());
  }
}

}  // namespace gpipe::test
