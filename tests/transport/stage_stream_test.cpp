// The order of streams, on a device that only writes down what it is asked to do.
#include "gpipe/transport/stage_stream.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "gpipe/execute/pipeline.h"
#include "tests/model/same_bits.h"

namespace gpipe::detail {
namespace {

using ::testing::ElementsAre;

constexpr c10::DeviceType kMock = c10::DeviceType::PrivateUse1;

std::vector<std::string>& written() {
  static std::vector<std::string> lines;
  return lines;
}

// Two devices; streams are numbered in the order they are taken, 0 is the default.
struct MockGuard final : c10::impl::DeviceGuardImplInterface {
  MockGuard() = default;
  explicit MockGuard(c10::DeviceType) {}
  static c10::Stream& current(c10::DeviceIndex device) {
    thread_local std::vector<c10::Stream> streams = {c10::Stream(c10::Stream::DEFAULT, {kMock, 0}),
                                                     c10::Stream(c10::Stream::DEFAULT, {kMock, 1})};
    return streams[device];
  }
  static c10::DeviceIndex& current_device() {
    thread_local c10::DeviceIndex device = 0;
    return device;
  }
  static std::string name(const c10::Stream& stream) {
    return std::to_string(stream.device_index()) + ":" + std::to_string(stream.id());
  }

  c10::DeviceType type() const override { return kMock; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kMock, std::exchange(current_device(), device.index())};
  }
  c10::Device getDevice() const override { return {kMock, current_device()}; }
  void setDevice(c10::Device device) const override { current_device() = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device() = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override { return current(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static c10::StreamId next = 0;
    return c10::Stream(c10::Stream::UNSAFE, device, ++next);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return std::exchange(current(stream.device_index()), stream);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new std::string();
    *static_cast<std::string*>(*event) = name(stream);
    written().push_back("record " + name(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    written().push_back(name(stream) + " waits for " + *static_cast<std::string*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<std::string*>(event); }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, MockGuard);

TEST(StageStream, OnCpuThereIsNothingToOrder) {
  const StageStream stream{c10::Device(c10::kCPU)};
  EXPECT_FALSE(stream.stream().has_value());
  EXPECT_EQ(stream.record(), nullptr);
  stream.wait(nullptr);
  stream.wait_for_caller();
  stream.make_caller_wait();
  const StageStream::Guard guard(stream);
}

TEST(StageStream, AReceiverWaitsForWhatItsSenderHadEnqueued) {
  const StageStream sender{c10::Device(kMock, 0)};
  const StageStream receiver{c10::Device(kMock, 1)};
  const std::string from = MockGuard::name(*sender.stream());
  const std::string to = MockGuard::name(*receiver.stream());
  written().clear();
  receiver.wait(sender.record());
  EXPECT_THAT(written(), ElementsAre("record " + from, to + " waits for " + from));
}

TEST(StageStream, AStepStandsBetweenWhatTheCallerEnqueuesBeforeAndAfterIt) {
  const StageStream stream{c10::Device(kMock, 1)};
  const std::string own = MockGuard::name(*stream.stream());
  written().clear();
  stream.wait_for_caller();
  stream.make_caller_wait();
  EXPECT_THAT(written(), ElementsAre("record 1:0", own + " waits for 1:0", "record " + own, "1:0 waits for " + own));
}

TEST(StageStream, IsCurrentWhileItsGuardLives) {
  const StageStream stream{c10::Device(kMock, 1)};
  {
    const StageStream::Guard guard(stream);
    EXPECT_EQ(MockGuard::current(1), *stream.stream());
    EXPECT_EQ(MockGuard::current_device(), 1);
  }
  EXPECT_EQ(MockGuard::current(1).id(), 0);
  EXPECT_EQ(MockGuard::current_device(), 0);
}

// See Note [Streams of a backward].
TEST(StageStream, StagesHaveStreamsOfTheirOwnWhereAutogradKeepsThem) {
  const StageStream first{c10::Device(kMock, 0)};
  const StageStream second{c10::Device(kMock, 0)};
  EXPECT_EQ(*first.stream() != *second.stream(), TORCH_VERSION_MAJOR >= 2);
  EXPECT_EQ(first.stream()->id() != 0, TORCH_VERSION_MAJOR >= 2);
}

TEST(StageStream, APipelineOnNamedCpusTrainsAsOneWithout) {
  const at::Tensor input = torch::randn({8, 4});
  Tensors losses;
  for (const bool named : {false, true}) {
    LayerChain chain;
    for (const char* name : {"a", "b", "c"}) chain.add<torch::nn::Linear>(name, 4, 4);
    auto options = PipelineOptions(3).num_micro_batches(4).balance({1, 1, 1});
    if (named) options.devices({torch::kCPU});
    Pipeline pipeline(chain, options);
    losses.push_back(pipeline->train_step(input, input, torch::nn::MSELoss()).loss);
  }
  EXPECT_TRUE(test::same_bits(losses[0], losses[1]));
}

}  // namespace
}  // namespace gpipe::detail
