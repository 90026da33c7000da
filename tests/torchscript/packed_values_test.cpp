#include "gpipe/torchscript/packed_values.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/error.h"
#include "tests/model/same_bits.h"

namespace gpipe::detail {
namespace {

using c10::IValue;

IValue packed_and_unpacked(const IValue& value, const c10::TypePtr& type) {
  Tensors packed = pack({value});
  packed.insert(packed.begin(), torch::zeros({2}));  // what goes directly
  return unpack(packed, 1, {type}, at::kCPU)[0];
}

TEST(PackedValues, NumbersTextsAndNothingComeBack) {
  EXPECT_TRUE(packed_and_unpacked({}, c10::NoneType::get()).isNone());
  EXPECT_EQ(packed_and_unpacked(std::int64_t{-3}, c10::IntType::get()).toInt(), -3);
  EXPECT_EQ(packed_and_unpacked(0.1, c10::FloatType::get()).toDouble(), 0.1);
  EXPECT_TRUE(packed_and_unpacked(true, c10::BoolType::get()).toBool());
  EXPECT_EQ(packed_and_unpacked("gr\xc3\xbc\xc3\x9f", c10::StringType::get()).toStringRef(), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(packed_and_unpacked(c10::complex<double>(1, -2), c10::ComplexType::get()).toComplexDouble(),
            c10::complex<double>(1, -2));
}

TEST(PackedValues, ContainersComeBackWithTheirTypes) {
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("z", torch::ones({2}));
  dict.insert("a", torch::zeros({3}));
  const IValue tuple = c10::ivalue::Tuple::create({c10::List<std::int64_t>({4, 5}), dict});
  const IValue back = packed_and_unpacked(tuple, tuple.type());
  EXPECT_EQ(*back.type(), *tuple.type());
  EXPECT_EQ(back.toTupleRef().elements()[0].toIntVector(), (std::vector<std::int64_t>{4, 5}));
  const auto items = back.toTupleRef().elements()[1].toGenericDict();
  EXPECT_EQ(items.begin()->key().toStringRef(), "z") << "the order is another";
  EXPECT_TRUE(test::same_bits(items.at("a").toTensor(), torch::zeros({3})));
}

TEST(PackedValues, ATensorThatOccursTwiceIsThereOnce) {
  const at::Tensor tensor = torch::ones({2});
  const c10::List<at::Tensor> list({tensor, at::Tensor(), tensor});
  const Tensors packed = pack({list, tensor});
  EXPECT_EQ(packed.size(), 2U);
  const std::vector<IValue> back = unpack(packed, 0, {c10::ListType::ofTensors(), c10::TensorType::get()}, at::kCPU);
  const c10::List<at::Tensor> tensors = back[0].toTensorList();
  EXPECT_TRUE(tensors.get(0).is_same(tensors.get(2)));
  EXPECT_TRUE(tensors.get(0).is_same(back[1].toTensor()));
  EXPECT_FALSE(tensors.get(1).defined());
}

TEST(PackedValues, ADeviceBecomesThatOfTheLayer) {
  const auto device = [](const at::Device& from) {
    return unpack(pack({from}), 0, {c10::DeviceObjType::get()}, at::kMeta)[0].toDevice();
  };
  EXPECT_EQ(device(at::kCPU), at::Device(at::kCPU));
  EXPECT_EQ(device(at::Device(at::kCUDA, 1)), at::Device(at::kMeta));
}

TEST(PackedValues, RefusesWhatWasNotPackedSo) {
  const std::vector<c10::TypePtr> types = {c10::ListType::ofTensors()};
  const Tensors packed = pack({c10::List<at::Tensor>({torch::ones({2})})});
  EXPECT_THROW(unpack({}, 0, types, at::kCPU), InvalidArgument);
  EXPECT_THROW(unpack({torch::ones({2})}, 0, types, at::kCPU), InvalidArgument);
  EXPECT_THROW(unpack({packed[0]}, 0, types, at::kCPU), InvalidArgument);
  for (std::int64_t index = 0; index < packed[0].numel(); ++index) {
    for (const std::int64_t number : {-2, 5, 99}) {
      Tensors changed = {packed[0].clone(), packed[1]};
      changed[0][index] = number;
      EXPECT_THROW(unpack(changed, 0, types, at::kCPU), InvalidArgument) << index << ", " << number;
    }
  }
}

TEST(PackedValues, SaysWhatCannotBePacked) {
  EXPECT_TRUE(can_be_packed(*c10::OptionalType::create(c10::ListType::ofInts())));
  EXPECT_FALSE(can_be_packed(*c10::AnyType::get()));
  EXPECT_FALSE(can_be_packed(*c10::ListType::create(c10::GeneratorType::get())));
}

}  // namespace
}  // namespace gpipe::detail
