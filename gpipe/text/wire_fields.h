// Wire fields: named lists of texts, integers and numbers, as bytes that one rank sends to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gpipe::detail {

// Tensors travel beside the bytes, which say only how many of them a field has.
struct TensorCount {
  std::uint32_t count = 0;
};

using WireValues = std::variant<std::vector<std::string>, std::vector<std::int64_t>, std::vector<double>, TensorCount>;

struct WireField {
  std::string name;
  WireValues values;
};

// Bounds of one record, for who writes it and for who reads it.
struct WireLimits {
  static constexpr std::size_t kMostBytes = std::size_t{256} << 20;
  static constexpr std::size_t kMostFields = 64;
  static constexpr std::size_t kMostNameBytes = 64;
  static constexpr std::size_t kMostTensors = std::size_t{1} << 20;
};

// The number of tensors that all fields have together.
std::size_t num_tensors(const std::vector<WireField>& fields);

// Numbers are little-endian. docs/launching.md has the layout. Fields have exactly one encoding, and doubles keep their
// bits. Throws InvalidArgument for fields beyond the limits, and for a name that is empty or occurs twice.
std::string encode_fields(const std::vector<WireField>& fields);
// Throws InvalidArgument unless the bytes are what encode_fields gives for some fields. Every length is checked before
// memory is taken for it: no piece is larger than 8 times the bytes, or than the limits of fields.
std::vector<WireField> decode_fields(std::string_view bytes);

}  // namespace gpipe::detail
