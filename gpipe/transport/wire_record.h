// WireRecord: what one rank tells another, as named texts, integers, numbers and tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gpipe/model/micro_batch.h"
#include "gpipe/text/wire_fields.h"

namespace gpipe::detail {

// A field has a name of its own and a list of values of one kind; a single value is a list of one.
//
// Thread-compatible.
class WireRecord {
 public:
  WireRecord() = default;
  // The tensors of all fields, in order. Throws InvalidArgument unless there are as many as the fields say.
  WireRecord(std::vector<WireField> fields, Tensors tensors);

  // These throw InvalidArgument for a name that is there already.
  void add(std::string name, std::string text) { add(std::move(name), std::vector<std::string>{std::move(text)}); }
  void add(std::string name, const char* text) { add(std::move(name), std::string(text)); }
  void add(std::string name, double number) { add(std::move(name), std::vector<double>{number}); }
  void add(std::string name, at::Tensor tensor) { add(std::move(name), Tensors{std::move(tensor)}); }
  template <typename Integer, typename = std::enable_if_t<std::is_integral_v<Integer>>>
  void add(std::string name, Integer integer) {
    add_field(std::move(name), std::vector<std::int64_t>{static_cast<std::int64_t>(integer)});
  }
  void add(std::string name, std::vector<std::string> texts) { add_field(std::move(name), std::move(texts)); }
  void add(std::string name, std::vector<double> numbers) { add_field(std::move(name), std::move(numbers)); }
  void add(std::string name, const Tensors& tensors);
  template <typename Integer, typename = std::enable_if_t<std::is_integral_v<Integer>>>
  void add(std::string name, const std::vector<Integer>& integers) {
    add_field(std::move(name), std::vector<std::int64_t>(integers.begin(), integers.end()));
  }
  // The fields of another record behind those of this one.
  void append(const WireRecord& other);

  const std::vector<WireField>& fields() const { return fields_; }
  const Tensors& tensors() const { return tensors_; }

 private:
  void add_field(std::string name, WireValues values);

  std::vector<WireField> fields_;
  Tensors tensors_;
};

// Reads a record that came from another rank. What is missing, of another kind or out of range throws InvalidArgument,
// whose text begins with the reader's refusal and names the field; so does, at the end, a field that nobody has asked
// for.
//
// Thread-compatible.
class WireReader {
 public:
  // `refusal` says what the record would not be, such as "this is not a failure report". REQUIRES: the record outlives
  // the reader.
  WireReader(const WireRecord& record, std::string refusal);

  bool has(const std::string& name) const;
  const std::string& text(const std::string& name);
  const std::vector<std::string>& texts(const std::string& name);
  double number(const std::string& name);
  const std::vector<double>& numbers(const std::string& name);
  bool flag(const std::string& name) { return integer<int>(name, 0, 1) != 0; }
  std::vector<bool> flags(const std::string& name);
  at::Tensor tensor(const std::string& name);
  Tensors tensors(const std::string& name);
  template <typename Integer = std::int64_t>
  Integer integer(const std::string& name, Integer least = std::numeric_limits<Integer>::min(),
                  Integer most = std::numeric_limits<Integer>::max()) {
    return static_cast<Integer>(integer_within(name, least, most));
  }
  template <typename Integer = std::int64_t>
  std::vector<Integer> integers(const std::string& name, Integer least = std::numeric_limits<Integer>::min(),
                                Integer most = std::numeric_limits<Integer>::max()) {
    const std::vector<std::int64_t>& integers = integers_within(name, least, most);
    return std::vector<Integer>(integers.begin(), integers.end());
  }

  // The number of values that each of those fields has, which are the columns of a table. Throws InvalidArgument if the
  // numbers differ.
  std::size_t num_rows(std::initializer_list<const char*> names) const;
  // Throws InvalidArgument unless each of those fields has so many values.
  void check_num_rows(std::initializer_list<const char*> names, std::size_t expected) const;

  // Throws InvalidArgument if there is a field that nobody has asked for.
  void finish() const;
  // Those that nobody has asked for yet, for another reader.
  WireRecord rest() const;

 private:
  const WireField& find(const std::string& name) const;
  template <typename Values>
  const Values& values(const std::string& name);
  template <typename Values>
  const Values& single(const std::string& name);
  std::int64_t integer_within(const std::string& name, std::int64_t least, std::int64_t most);
  const std::vector<std::int64_t>& integers_within(const std::string& name, std::int64_t least, std::int64_t most);
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const;
  Tensors tensors_of(const WireField& field) const;

  const WireRecord& record_;
  const std::string refusal_;
  std::vector<bool> is_asked_for_;  // by field
};

// One tensor of bytes for everything but the tensors, which follow as they are.
Tensors encode(const WireRecord& record);
// Throws InvalidArgument unless the tensors are what encode gives for some record.
WireRecord decode(const Tensors& tensors);

// For places that carry only text. Throws InvalidArgument if the record has tensors.
std::string encode_text(const WireRecord& record);
// Throws InvalidArgument unless the text is what encode_text gives for some record.
WireRecord decode_text(std::string_view text);

// The fields that the first tensor of an encoded record has. Throws InvalidArgument if it has none.
std::vector<WireField> decode_fields(const at::Tensor& bytes);

}  // namespace gpipe::detail
