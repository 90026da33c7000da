#include "gpipe/transport/wire_record.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/text/printable.h"

namespace gpipe::detail {
namespace {

// In the order of the alternatives of WireValues.
constexpr std::array<const char*, std::variant_size_v<WireValues>> kKindNames = {"texts", "integers", "numbers",
                                                                                 "tensors"};

std::size_t size_of(const WireField& field) {
  return std::visit(
      [](const auto& values) -> std::size_t {
        if constexpr (std::is_same_v<std::decay_t<decltype(values)>, TensorCount>) {
          return values.count;
        } else {
          return values.size();
        }
      },
      field.values);
}

}  // namespace

WireRecord::WireRecord(std::vector<WireField> fields, Tensors tensors)
    : fields_(std::move(fields)), tensors_(std::move(tensors)) {
  if (num_tensors(fields_) == tensors_.size()) return;
  throw InvalidArgument(fmt::format("this is not a record of a rank: it has {} tensors, but its fields have {}",
                                    tensors_.size(), num_tensors(fields_)));
}

void WireRecord::add_field(std::string name, WireValues values) {
  const auto has_that_name = [&](const WireField& field) { return field.name == name; };
  if (std::any_of(fields_.begin(), fields_.end(), has_that_name)) {
    throw InvalidArgument(fmt::format("a record of a rank has '{}' twice", name));
  }
  fields_.push_back({std::move(name), std::move(values)});
}

void WireRecord::add(std::string name, const Tensors& tensors) {
  add_field(std::move(name), TensorCount{static_cast<std::uint32_t>(tensors.size())});
  tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
}

void WireRecord::append(const WireRecord& other) {
  for (const WireField& field : other.fields_) add_field(field.name, field.values);
  tensors_.insert(tensors_.end(), other.tensors_.begin(), other.tensors_.end());
}

WireReader::WireReader(const WireRecord& record, std::string refusal)
    : record_(record), refusal_(std::move(refusal)), is_asked_for_(record.fields().size()) {}

void WireReader::refuse(const std::string& name, const std::string& why) const {
  throw InvalidArgument(fmt::format("{}: '{}' {}", refusal_, printable(name), why));
}

bool WireReader::has(const std::string& name) const {
  const std::vector<WireField>& fields = record_.fields();
  return std::any_of(fields.begin(), fields.end(), [&](const WireField& field) { return field.name == name; });
}

const WireField& WireReader::find(const std::string& name) const {
  for (const WireField& field : record_.fields()) {
    if (field.name == name) return field;
  }
  refuse(name, "is missing");
}

template <typename Values>
const Values& WireReader::values(const std::string& name) {
  const WireField& field = find(name);
  const auto* const values = std::get_if<Values>(&field.values);
  if (values == nullptr) {
    refuse(name,
           fmt::format("has {}, not {}", kKindNames[field.values.index()], kKindNames[WireValues(Values()).index()]));
  }
  is_asked_for_[static_cast<std::size_t>(&field - record_.fields().data())] = true;
  return *values;
}

template <typename Values>
const Values& WireReader::single(const std::string& name) {
  const Values& list = values<Values>(name);
  const std::size_t size = size_of(find(name));
  if (size != 1) refuse(name, fmt::format("has {} values, not one", size));
  return list;
}

const std::string& WireReader::text(const std::string& name) { return single<std::vector<std::string>>(name).front(); }

const std::vector<std::string>& WireReader::texts(const std::string& name) {
  return values<std::vector<std::string>>(name);
}

double WireReader::number(const std::string& name) { return single<std::vector<double>>(name).front(); }

const std::vector<double>& WireReader::numbers(const std::string& name) { return values<std::vector<double>>(name); }

std::vector<bool> WireReader::flags(const std::string& name) {
  const std::vector<std::int64_t>& integers = integers_within(name, 0, 1);
  return {integers.begin(), integers.end()};
}

std::int64_t WireReader::integer_within(const std::string& name, std::int64_t least, std::int64_t most) {
  single<std::vector<std::int64_t>>(name);
  return integers_within(name, least, most).front();
}

const std::vector<std::int64_t>& WireReader::integers_within(const std::string& name, std::int64_t least,
                                                             std::int64_t most) {
  const auto& integers = values<std::vector<std::int64_t>>(name);
  for (const std::int64_t integer : integers) {
    if (integer < least || integer > most) {
      refuse(name, fmt::format("is {}, not a number from {} to {}", integer, least, most));
    }
  }
  return integers;
}

at::Tensor WireReader::tensor(const std::string& name) {
  single<TensorCount>(name);
  return tensors(name).front();
}

Tensors WireReader::tensors(const std::string& name) {
  values<TensorCount>(name);
  return tensors_of(find(name));
}

Tensors WireReader::tensors_of(const WireField& field) const {
  auto first = record_.tensors().begin();
  for (const WireField& before : record_.fields()) {
    if (&before == &field) break;
    if (const auto* const tensors = std::get_if<TensorCount>(&before.values)) first += tensors->count;
  }
  return {first, first + static_cast<std::ptrdiff_t>(size_of(field))};
}

std::size_t WireReader::num_rows(std::initializer_list<const char*> names) const {
  const std::size_t rows = size_of(find(*names.begin()));
  for (const char* const name : names) {
    const std::size_t size = size_of(find(name));
    if (size != rows) refuse(name, fmt::format("has {} values, but '{}' has {}", size, *names.begin(), rows));
  }
  return rows;
}

void WireReader::check_num_rows(std::initializer_list<const char*> names, std::size_t expected) const {
  for (const char* const name : names) {
    const std::size_t size = size_of(find(name));
    if (size != expected) refuse(name, fmt::format("has {} values, not {}", size, expected));
  }
}

void WireReader::finish() const {
  const auto left = std::find(is_asked_for_.begin(), is_asked_for_.end(), false);
  if (left == is_asked_for_.end()) return;
  refuse(record_.fields()[static_cast<std::size_t>(left - is_asked_for_.begin())].name, "does not belong there");
}

WireRecord WireReader::rest() const {
  std::vector<WireField> fields;
  Tensors tensors;
  for (std::size_t index = 0; index < is_asked_for_.size(); ++index) {
    if (is_asked_for_[index]) continue;
    const WireField& field = record_.fields()[index];
    fields.push_back(field);
    if (!std::holds_alternative<TensorCount>(field.values)) continue;
    const Tensors of_field = tensors_of(field);
    tensors.insert(tensors.end(), of_field.begin(), of_field.end());
  }
  return {std::move(fields), std::move(tensors)};
}

Tensors encode(const WireRecord& record) {
  const std::string bytes = encode_fields(record.fields());
  Tensors tensors = {at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte)};
  if (!bytes.empty()) std::memcpy(tensors.front().data_ptr(), bytes.data(), bytes.size());
  tensors.insert(tensors.end(), record.tensors().begin(), record.tensors().end());
  return tensors;
}

std::vector<WireField> decode_fields(const at::Tensor& bytes) {
  if (!bytes.defined() || bytes.scalar_type() != at::kByte || bytes.dim() != 1 || !bytes.is_contiguous() ||
      !bytes.device().is_cpu()) {
    throw InvalidArgument("this is not a record of a rank: its first tensor has no bytes");
  }
  return decode_fields({static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel())});
}

WireRecord decode(const Tensors& tensors) {
  return {decode_fields(tensors.empty() ? at::Tensor() : tensors.front()),
          tensors.empty() ? Tensors() : Tensors(tensors.begin() + 1, tensors.end())};
}

std::string encode_text(const WireRecord& record) {
  if (!record.tensors().empty()) throw InvalidArgument("a record of a rank has tensors where only text can go");
  return encode_fields(record.fields());
}

WireRecord decode_text(std::string_view text) { return {decode_fields(text), {}}; }

}  // namespace gpipe::detail
