#include "gpipe/text/wire_fields.h"

#include <fmt/format.h>

#include <cstring>
#include <set>
#include <utility>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw InvalidArgument(fmt::format("this is not a record of a rank: {}", why));
}

template <typename Unsigned>
void put(std::string& bytes, Unsigned value) {
  for (std::size_t byte = 0; byte < sizeof value; ++byte) bytes += static_cast<char>(value >> (8 * byte) & 0xff);
}

std::uint32_t length_of(std::size_t length) {
  if (length > WireLimits::kMostBytes) refuse("it is too long");
  return static_cast<std::uint32_t>(length);
}

void put_values(std::string& bytes, const std::vector<std::string>& texts) {
  put(bytes, length_of(texts.size()));
  for (const std::string& text : texts) {
    put(bytes, length_of(text.size()));
    length_of(bytes.size() + text.size());  // before it is copied
    bytes += text;
  }
}

// Integers and doubles keep their bits.
template <typename Number>
void put_values(std::string& bytes, const std::vector<Number>& numbers) {
  put(bytes, length_of(numbers.size()));
  for (const Number number : numbers) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    put(bytes, bits);
  }
}

void put_values(std::string& bytes, TensorCount tensors) { put(bytes, tensors.count); }

// Takes one thing after the other from bytes of unknown origin.
class FieldCursor {
 public:
  explicit FieldCursor(std::string_view bytes) : rest_(bytes) {}

  bool is_at_end() const { return rest_.empty(); }

  std::string_view take(std::size_t count) {
    if (count > rest_.size()) refuse("it ends too early");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  template <typename Unsigned>
  Unsigned number() {
    Unsigned value = 0;
    const std::string_view bytes = take(sizeof value);
    for (std::size_t byte = 0; byte < sizeof value; ++byte) {
      value |= static_cast<Unsigned>(static_cast<Unsigned>(static_cast<unsigned char>(bytes[byte])) << (8 * byte));
    }
    return value;
  }

  // A number of things of at least so many bytes each, which must be there.
  std::size_t count(std::size_t least_bytes_each) {
    const auto count = number<std::uint32_t>();
    if (count > rest_.size() / least_bytes_each) refuse("it ends too early");
    return count;
  }

 private:
  std::string_view rest_;
};

void take_values(FieldCursor& cursor, std::vector<std::string>& texts) {
  const std::size_t count = cursor.count(sizeof(std::uint32_t));
  texts.reserve(count);
  for (std::size_t index = 0; index < count; ++index) texts.emplace_back(cursor.take(cursor.number<std::uint32_t>()));
}

template <typename Number>
void take_values(FieldCursor& cursor, std::vector<Number>& numbers) {
  numbers.resize(cursor.count(sizeof(std::uint64_t)));
  for (Number& number : numbers) {
    const auto bits = cursor.number<std::uint64_t>();
    std::memcpy(&number, &bits, sizeof number);
  }
}

void take_values(FieldCursor& cursor, TensorCount& tensors) { tensors.count = cursor.number<std::uint32_t>(); }

// The alternative of that number, empty.
template <std::size_t kKind = 0>
WireValues values_of_kind(std::size_t kind) {
  if constexpr (kKind < std::variant_size_v<WireValues>) {
    return kind == kKind ? WireValues(std::in_place_index<kKind>) : values_of_kind<kKind + 1>(kind);
  } else {
    refuse(fmt::format("there is no kind {}", kind));
  }
}

void check(const std::vector<WireField>& fields) {
  if (fields.size() > WireLimits::kMostFields) refuse("it has too many fields");
  if (num_tensors(fields) > WireLimits::kMostTensors) refuse("it has too many tensors");
  std::set<std::string_view> names;
  for (const WireField& field : fields) {
    if (field.name.empty() || field.name.size() > WireLimits::kMostNameBytes) refuse("a name is too short or too long");
    if (!names.insert(field.name).second) refuse("a name occurs twice");
  }
}

}  // namespace

std::size_t num_tensors(const std::vector<WireField>& fields) {
  std::size_t sum = 0;
  for (const WireField& field : fields) {
    if (const auto* const tensors = std::get_if<TensorCount>(&field.values)) sum += tensors->count;
  }
  return sum;
}

std::string encode_fields(const std::vector<WireField>& fields) {
  check(fields);
  std::string bytes;
  for (const WireField& field : fields) {
    put(bytes, static_cast<std::uint8_t>(field.name.size()));
    bytes += field.name;
    put(bytes, static_cast<std::uint8_t>(field.values.index()));
    std::visit([&](const auto& values) { put_values(bytes, values); }, field.values);
    length_of(bytes.size());
  }
  return bytes;
}

std::vector<WireField> decode_fields(std::string_view bytes) {
  length_of(bytes.size());
  std::vector<WireField> fields;
  for (FieldCursor cursor(bytes); !cursor.is_at_end();) {
    if (fields.size() == WireLimits::kMostFields) refuse("it has too many fields");
    WireField& field = fields.emplace_back();
    field.name = cursor.take(cursor.number<std::uint8_t>());
    field.values = values_of_kind(cursor.number<std::uint8_t>());
    std::visit([&](auto& values) { take_values(cursor, values); }, field.values);
  }
  check(fields);
  return fields;
}

}  // namespace gpipe::detail
