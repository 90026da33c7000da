#include "gpipe/torchscript/packed_values.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

// What follows in the skeleton.
enum Tag : std::int64_t {
  kNone,
  kTensor,   // its place among the tensors, -1 if it is undefined
  kInt,      // it
  kDouble,   // its bits
  kBool,     // 0 or 1
  kText,     // its length, and a number a byte
  kDevice,   // type and index
  kComplex,  // the bits of both parts
  kList,     // its length, and the elements
  kTuple,
  kDict,  // its size, and each key before its value
};

std::int64_t bits_of(double number) {
  std::int64_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

double double_of(std::int64_t bits) {
  double number = 0;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

class Packer {
 public:
  void add(const IValue& value) {
    if (value.isNone()) {
      write({kNone});
    } else if (value.isTensor()) {
      write({kTensor, place_of(value.toTensor())});
    } else if (value.isInt()) {
      write({kInt, value.toInt()});
    } else if (value.isDouble()) {
      write({kDouble, bits_of(value.toDouble())});
    } else if (value.isBool()) {
      write({kBool, value.toBool() ? 1 : 0});
    } else if (value.isString()) {
      const std::string& text = value.toStringRef();
      write({kText, static_cast<std::int64_t>(text.size())});
      for (const char c : text) write({static_cast<unsigned char>(c)});
    } else if (value.isDevice()) {
      write({kDevice, static_cast<std::int64_t>(value.toDevice().type()), value.toDevice().index()});
    } else if (value.isComplexDouble()) {
      const c10::complex<double> number = value.toComplexDouble();
      write({kComplex, bits_of(number.real()), bits_of(number.imag())});
    } else {
      add_container(value);
    }
  }

  Tensors finish() {
    tensors_.insert(tensors_.begin(), at::tensor(numbers_, at::TensorOptions(at::kLong)));
    return std::move(tensors_);
  }

 private:
  void write(std::initializer_list<std::int64_t> numbers) { numbers_.insert(numbers_.end(), numbers); }

  void add_container(const IValue& value) {
    if (value.isTuple()) {
      const auto& elements = value.toTupleRef().elements();
      write({kTuple, static_cast<std::int64_t>(elements.size())});
      for (const IValue& element : elements) add(element);
    } else if (value.isGenericDict()) {
      const auto dict = value.toGenericDict();
      write({kDict, static_cast<std::int64_t>(dict.size())});
      for (const auto& item : dict) {
        add(item.key());
        add(item.value());
      }
    } else if (value.isList()) {
      const auto list = value.toListRef();
      write({kList, static_cast<std::int64_t>(list.size())});
      for (const IValue& element : list) add(element);
    } else {
      write({kNone});  // the result of a branch that has returned early: nothing reads it
    }
  }

  std::int64_t place_of(const at::Tensor& tensor) {
    if (!tensor.defined()) return -1;
    const auto found =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const at::Tensor& other) { return other.is_same(tensor); });
    const std::int64_t place = found - tensors_.begin();
    if (found == tensors_.end()) tensors_.push_back(tensor);
    return place;
  }

  std::vector<std::int64_t> numbers_;
  Tensors tensors_;
};

class Unpacker {
 public:
  Unpacker(const Tensors& packed, std::size_t first, const at::Device& device)
      : packed_(packed), first_(first), device_(device) {
    if (packed.size() <= first || !packed[first].defined() || packed[first].scalar_type() != at::kLong ||
        packed[first].dim() != 1) {
      refuse();
    }
    skeleton_ = packed[first].cpu().contiguous();
    next_ = skeleton_.data_ptr<std::int64_t>();
    end_ = next_ + skeleton_.numel();
  }

  IValue value(const TypePtr& type) {
    const std::int64_t tag = read();
    if (!fits(tag, *plain(type))) refuse();
    switch (tag) {
      case kNone:
        return {};
      case kTensor:
        return tensor(read());
      case kInt:
        return read();
      case kDouble:
        return double_of(read());
      case kBool:
        return read() != 0;
      case kText:
        return text();
      case kDevice:
        return device();
      case kComplex: {
        const double real = double_of(read());
        return c10::complex<double>(real, double_of(read()));
      }
      case kList:
        return list(plain(type));
      case kTuple:
        return tuple(plain(type));
      case kDict:
        return dict(plain(type));
      default:
        refuse();
    }
  }

  void finish() const {
    if (next_ != end_) refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    throw InvalidArgument(
        "the tensors between two layers of a TorchScript module are not what the first has written; a layer takes what "
        "the layer before gives, as it is");
  }

  std::int64_t read() {
    if (next_ == end_) refuse();
    return *next_++;
  }

  std::int64_t size() {
    const std::int64_t size = read();
    if (size < 0 || size > end_ - next_) refuse();
    return size;
  }

  // Nothing fits everything: it is also what a branch that has returned early leaves behind.
  static bool fits(std::int64_t tag, const c10::Type& type) {
    switch (type.kind()) {
      case TypeKind::NumberType:
        return tag == kInt || tag == kDouble || tag == kComplex || tag == kNone;
      case TypeKind::TensorType:
        return tag == kTensor || tag == kNone;
      case TypeKind::IntType:
        return tag == kInt || tag == kNone;
      case TypeKind::FloatType:
        return tag == kDouble || tag == kNone;
      case TypeKind::BoolType:
        return tag == kBool || tag == kNone;
      case TypeKind::StringType:
        return tag == kText || tag == kNone;
      case TypeKind::DeviceObjType:
        return tag == kDevice || tag == kNone;
      case TypeKind::ComplexType:
        return tag == kComplex || tag == kNone;
      case TypeKind::ListType:
        return tag == kList || tag == kNone;
      case TypeKind::TupleType:
        return tag == kTuple || tag == kNone;
      case TypeKind::DictType:
        return tag == kDict || tag == kNone;
      default:
        return tag == kNone;
    }
  }

  // Without what makes it optional.
  static TypePtr plain(const TypePtr& type) {
    return type->kind() == TypeKind::OptionalType ? type->expectRef<c10::OptionalType>().getElementType() : type;
  }

  IValue tensor(std::int64_t place) const {
    if (place == -1) return at::Tensor();
    const auto num_tensors = static_cast<std::int64_t>(packed_.size() - first_ - 1);
    if (place < 0 || place >= num_tensors) refuse();
    return packed_[first_ + 1 + static_cast<std::size_t>(place)];
  }

  IValue text() {
    std::string text;
    for (std::int64_t left = size(); left > 0; --left) text += static_cast<char>(read());
    return text;
  }

  IValue device() {
    const auto type = static_cast<at::DeviceType>(read());
    const auto index = static_cast<at::DeviceIndex>(read());
    return type == at::kCPU ? at::Device(type, index) : device_;
  }

  IValue list(const TypePtr& type) {
    const TypePtr element = type->expectRef<c10::ListType>().getElementType();
    c10::impl::GenericList values(element);
    for (std::int64_t left = size(); left > 0; --left) values.push_back(value(element));
    return values;
  }

  IValue tuple(const TypePtr& type) {
    const auto tuple_type = type->expect<c10::TupleType>();
    if (size() != static_cast<std::int64_t>(tuple_type->elements().size())) refuse();
    std::vector<IValue> values;
    for (const TypePtr& element : tuple_type->elements()) values.push_back(value(element));
    if (tuple_type->schema()) return c10::ivalue::Tuple::createNamed(std::move(values), tuple_type);
    return c10::ivalue::Tuple::create(std::move(values));
  }

  IValue dict(const TypePtr& type) {
    const auto& dict_type = type->expectRef<c10::DictType>();
    c10::impl::GenericDict values(dict_type.getKeyType(), dict_type.getValueType());
    for (std::int64_t left = size(); left > 0; --left) {
      const IValue key = value(dict_type.getKeyType());
      values.insert(key, value(dict_type.getValueType()));
    }
    return values;
  }

  const Tensors& packed_;
  const std::size_t first_;
  const at::Device device_;
  at::Tensor skeleton_;
  const std::int64_t* next_ = nullptr;
  const std::int64_t* end_ = nullptr;
};

}  // namespace

bool can_be_packed(const c10::Type& type) {
  switch (type.kind()) {
    case TypeKind::TensorType:
    case TypeKind::IntType:
    case TypeKind::FloatType:
    case TypeKind::BoolType:
    case TypeKind::StringType:
    case TypeKind::NoneType:
    case TypeKind::NumberType:
    case TypeKind::ComplexType:
    case TypeKind::DeviceObjType:
      return true;
    case TypeKind::OptionalType:
    case TypeKind::ListType:
    case TypeKind::TupleType:
    case TypeKind::DictType: {
      const auto contained = type.containedTypes();
      return std::all_of(contained.begin(), contained.end(),
                         [](const TypePtr& element) { return can_be_packed(*element); });
    }
    default:
      return false;
  }
}

Tensors pack(const std::vector<IValue>& values) {
  Packer packer;
  for (const IValue& value : values) packer.add(value);
  return packer.finish();
}

std::vector<IValue> unpack(const Tensors& packed, std::size_t first, const std::vector<TypePtr>& types,
                           const at::Device& device) {
  Unpacker unpacker(packed, first, device);
  std::vector<IValue> values;
  for (const TypePtr& type : types) values.push_back(unpacker.value(type));
  unpacker.finish();
  return values;
}

}  // namespace gpipe::detail
