// What a pipeline on devices that run behind the program has to wait for, and what not, place by place. Each of the
// waits that is left out makes its test fail in nearly every run.
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "gpipe/error.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/interpret/action_error.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/profiler.h"
#include "gpipe/transport/host_copies.h"
#include "gpipe/transport/stage_stream.h"
#include "tests/devices/late_device.h"
#include "tests/devices/late_guard.h"
#include "tests/execute/training.h"
#include "tests/os/comes_true.h"

namespace gpipe::test {
namespace {

using detail::CallerPoints;
using detail::StageStream;

const c10::Device kFirst(kLateDevice, 0);
const c10::Device kSecond(kLateDevice, 1);
constexpr int kLate = 20;  // milliseconds

c10::Stream default_stream(c10::Device device) { return LateGuard().getDefaultStream(device); }
c10::Stream pool_stream(c10::Device device) { return LateGuard().getStreamFromGlobalPool(device, false); }

// Every other column of twice as many.
struct GapsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return at::cat({x, x * 2}, 1).slice(1, 0, x.size(1) * 2, 2); }
};
TORCH_MODULE(Gaps);

TEST(DeviceOrder, AnActivationWithGapsIsGatheredWhenItHasBeenComputed) {
  TestModel model{"gaps", {}, torch::randn({16, 64}), torch::randn({16, 64}), squared_error};
  for (int block = 0; block < 4; ++block) {
    model.chain.add<torch::nn::Linear>("linear" + std::to_string(block), 64, 64);
    model.chain.add<Gaps>("gaps" + std::to_string(block));
  }
  const Trained expected = train_plainly(model, 16);
  const LateDelays delays(500, late_seed());
  const auto options = PipelineOptions(4).num_micro_batches(4).balance({2, 2, 2, 2}).devices(late_devices(4));
  expect_same_bits(train_pipelined(model, 16, options), expected);
}

LayerChain small_chain() {
  LayerChain chain;
  chain.add<torch::nn::Linear>("first", 8, 8).add<torch::nn::Tanh>("tanh").add<torch::nn::Linear>("last", 8, 8);
  return chain;
}

// On two devices, the first stage on the first.
PipelineOptions small_options() {
  return PipelineOptions(2).num_micro_batches(4).balance({1, 2}).seed(3).devices({kFirst, kSecond});
}

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

Batch random_batch() { return {torch::randn({8, 8}), torch::randn({8, 8})}; }

// Of a step on the CPU.
Pipeline stepped_on_cpu(const Batch& batch) {
  Pipeline pipeline(small_chain(), small_options().devices({}));
  pipeline->train_step(batch.input, batch.target, torch::nn::MSELoss());
  return pipeline;
}

void expect_same_grads(const Pipeline& got, const Pipeline& expected) {
  for (const auto& parameter : got->named_parameters()) {
    expect_same_bits(parameter.value().grad(), expected->named_parameters()[parameter.key()].grad(), parameter.key());
  }
}

// In the caller's streams on both devices, which are not the default ones, and late.
TEST(DeviceOrder, ABatchOnOtherDevicesIsReadWhenTheCallerHasMadeIt) {
  const Batch batch = random_batch();
  const Batch there{batch.input.to(kSecond), batch.target.to(kFirst)};
  const c10::Stream input_stream = pool_stream(kSecond);
  const c10::Stream target_stream = pool_stream(kFirst);
  Pipeline pipeline(small_chain(), small_options());
  pipeline->train_step(batch.input, batch.target, torch::nn::MSELoss());  // places the layers
  pipeline->zero_grad();
  synchronize_late_devices();  // streams of the caller's own do not wait for the default ones
  Batch made;
  {
    const c10::StreamGuard on_second(input_stream);
    const c10::StreamGuard on_first(target_stream);
    made = {torch::full_like(there.input, 7), torch::full_like(there.target, 7)};
    make_late(input_stream, kLate);
    make_late(target_stream, kLate);
    made.input.copy_(there.input);
    made.target.copy_(there.target);
    pipeline->train_step(made.input, made.target, torch::nn::MSELoss());
  }
  synchronize_late_devices();
  expect_same_grads(pipeline, stepped_on_cpu(batch));
}

// Before the first step the layers are tried on it: an index that is not there yet would be none of the table's.
TEST(DeviceOrder, TheFirstBatchIsReadWhenTheCallerHasMadeIt) {
  LayerChain chain;
  chain.add<torch::nn::Embedding>("embedding", 4, 8).add<torch::nn::Linear>("linear", 8, 8);
  const at::Tensor indices = torch::randint(4, {8}, torch::kLong);
  const at::Tensor there = indices.to(kSecond);
  const c10::Stream stream = pool_stream(kSecond);
  Pipeline pipeline(chain, small_options().balance({1, 1}));
  const c10::StreamGuard guard(stream);
  at::Tensor made = at::empty_like(there);
  make_late(stream, kLate);
  made.copy_(there);
  pipeline->train_step(made, torch::zeros({8, 8}), torch::nn::MSELoss());
  synchronize_late_devices();
  EXPECT_TRUE(pipeline->named_parameters()["embedding.weight"].grad().defined());
}

// No stage is there, whose stream the caller's would wait for.
TEST(DeviceOrder, ABatchOnAnotherDeviceMayBeChangedAfterTheStep) {
  const Batch batch = random_batch();
  const Batch there{batch.input.to(kSecond), batch.target.to(kSecond)};
  Pipeline pipeline(small_chain(), small_options().devices({kFirst}));
  {
    const SlowCopies slow(kLate);
    pipeline->train_step(there.input, there.target, torch::nn::MSELoss());
    at::Tensor(there.input).fill_(7);
    at::Tensor(there.target).fill_(7);
    synchronize_late_devices();
  }
  expect_same_grads(pipeline, stepped_on_cpu(batch));
}

TEST(DeviceOrder, APinnedBatchMayBeFilledAgainAfterTheStep) {
  const Batch batch = random_batch();
  for (const bool target_is_pinned : {false, true}) {
    const Batch pinned{batch.input.pin_memory(),
                       target_is_pinned ? batch.target.pin_memory() : batch.target.to(kSecond)};
    Pipeline pipeline(small_chain(), small_options());
    {
      const SlowCopies slow(kLate);
      pipeline->train_step(pinned.input, pinned.target, torch::nn::MSELoss());
      at::Tensor(pinned.input).fill_(7);
      if (target_is_pinned) at::Tensor(pinned.target).fill_(7);
      synchronize_late_devices();
    }
    expect_same_grads(pipeline, stepped_on_cpu(batch));
  }
}

TEST(DeviceOrder, AReceiverWaitsForWhatItsSenderHadEnqueued) {
  const StageStream sender(kFirst);
  const StageStream receiver(kSecond);
  HeldStream held(*sender.stream());
  receiver.wait(sender.record());
  const auto received = receiver.record();
  EXPECT_FALSE(received->query());
  held.release();
  LateGuard().synchronizeStream(*receiver.stream());
  EXPECT_TRUE(received->query());
}

TEST(DeviceOrder, CopiesDoNotWaitForTheWorkOfTheStageThatTheyComeTo) {
  StageStream receiver(kSecond);
  const at::Tensor pinned = torch::ones({8}).pin_memory();
  const at::Tensor there = pinned.to(kFirst);
  LateGuard().synchronizeStream(default_stream(kFirst));
  CallerPoints points;
  points.record({there});
  HeldStream held(*receiver.stream());
  const at::Tensor from_host = receiver.bring(pinned, nullptr);
  const at::Tensor from_device = receiver.bring(there, points.on(kFirst));
  receiver.finish_host_reads();
  receiver.make_caller_wait();
  LateGuard().synchronizeStream(default_stream(kFirst));  // waits for the copy, which would wait for ever
  held.release();
  EXPECT_TRUE(same_bits(from_host, pinned));
  EXPECT_TRUE(same_bits(from_device, pinned));
}

TEST(DeviceOrder, ATensorIsCopiedToTheHostBehindWhatTheThreadHasEnqueued) {
  const at::Tensor there = torch::zeros({3, 4}).t().to(kSecond);
  detail::HostCopies copies;
  HeldStream held(default_stream(kSecond));
  there.fill_(1);
  const detail::HostCopies::Copy copy = copies.of(there, nullptr);
  EXPECT_FALSE(copy.whole->query());
  held.release();
  EXPECT_TRUE(comes_true([&] { return copy.whole->query(); }));
  EXPECT_TRUE(same_bits(copy.tensor, torch::ones({4, 3})));
  EXPECT_EQ(copy.tensor.strides(), there.strides());
  EXPECT_TRUE(copy.tensor.is_pinned());
}

TEST(DeviceOrder, TwoStagesOnADeviceHaveStreamsOfTheirOwn) {
  EXPECT_NE(*StageStream(kFirst).stream(), *StageStream(kFirst).stream());
}

// A device that fails fails in everything that comes after it, also in what puts a step back.
struct BreaksTheDeviceImpl : torch::nn::Module {
  BreaksTheDeviceImpl() : statistics(register_buffer("statistics", torch::zeros({1}))) {}
  at::Tensor forward(const at::Tensor& input) {
    statistics.add_(1);
    if (broken != nullptr) {
      *broken = std::make_unique<BrokenDevices>();
      throw std::runtime_error("an illegal memory access was encountered");
    }
    return input;
  }
  at::Tensor statistics;
  std::unique_ptr<BrokenDevices>* broken = nullptr;
};
TORCH_MODULE(BreaksTheDevice);

TEST(DeviceOrder, TheErrorOfALayerIsNotReplacedByThoseOfTheBrokenDevice) {
  std::unique_ptr<BrokenDevices> broken;
  LayerChain chain = small_chain();
  BreaksTheDevice breaks;
  chain.add("breaks", breaks);
  Pipeline pipeline(chain, small_options().balance({2, 2}));
  const Batch batch = random_batch();
  const auto step = [&] { pipeline->train_step(batch.input, batch.target, torch::nn::MSELoss()); };
  step();
  for (const auto& module : pipeline->modules()) {
    if (auto* const layer = dynamic_cast<BreaksTheDeviceImpl*>(module.get())) layer->broken = &broken;
  }
  try {
    step();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ActionError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("an illegal memory access was encountered"));
    EXPECT_THAT(error.what(), testing::HasSubstr("breaks"));
  }
  broken.reset();
}

TEST(DeviceProfile, IsRefusedForASampleThatIsThere) {
  try {
    profile(small_chain(), random_batch().input.to(kSecond));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(),
                testing::StartsWith("the sample to profile is on cuda:1, but processor time and the CPU"));
  }
}

TEST(DeviceTimeline, SaysThatItsSpansAreThoseOfTheHost) {
  Pipeline pipeline(small_chain(), small_options().devices({torch::kCPU, kSecond}));
  const Batch batch = random_batch();
  const StepResult result = pipeline->train_step(batch.input, batch.target, torch::nn::MSELoss());
  EXPECT_THAT(result.timeline.notes,
              testing::ElementsAre("stage 1: it is on cuda:1, which works behind the program: its spans are those in "
                                   "which its work was handed over"));
}

// Also where a stage is on the CPU.
TEST(DeviceOrder, AutogradGoesThroughThePipelineAsOnTheCpu) {
  const Batch batch = random_batch();
  const auto run = [&](Pipeline& pipeline) {
    const at::Tensor scale = torch::full({}, 2.0, torch::requires_grad());
    const at::Tensor output = pipeline->forward(batch.input * scale);
    (output * batch.target.to(output.device())).sum().backward();
    return scale.grad();
  };
  Pipeline expected(small_chain(), small_options().devices({}));
  const at::Tensor expected_grad = run(expected);
  const LateDelays delays(500, late_seed());
  for (const std::vector<c10::Device>& devices : {late_devices(2), {kFirst, torch::kCPU}, {torch::kCPU, kSecond}}) {
    Pipeline pipeline(small_chain(), small_options().devices(devices));
    EXPECT_TRUE(same_bits(run(pipeline), expected_grad));
    expect_same_grads(pipeline, expected);
  }
}

TEST(DeviceOrder, NormsAreThoseOfTheCpu) {
  const Batch batch = random_batch();
  Pipeline expected = stepped_on_cpu(batch);
  Pipeline pipeline(small_chain(), small_options());
  const LateDelays delays(500, late_seed());
  pipeline->train_step(batch.input, batch.target, torch::nn::MSELoss());
  EXPECT_EQ(clip_grad_norm_(pipeline, 0.01), clip_grad_norm_(expected, 0.01));
  expect_same_grads(pipeline, expected);
}

LayerRun run_of(int micro_batch, bool recomputing = false) {
  LayerRun run;
  run.seed = 5;
  run.layer = 2;
  run.micro_batch = micro_batch;
  run.recomputing = recomputing;
  return run;
}

TEST(DeviceDraws, AreThoseOfTheLayerRun) {
  const at::Tensor ones = torch::ones({100}).to(kSecond);
  const auto drop = [&](int micro_batch, bool recomputing) {
    const LayerScope scope(run_of(micro_batch, recomputing));
    torch::rand({3}, kSecond);
    return at::dropout(ones, 0.5, /*train=*/true);
  };
  const at::Tensor first = drop(0, false);
  torch::rand({3}, kSecond);
  EXPECT_TRUE(same_bits(drop(0, true), first));
  EXPECT_FALSE(same_bits(drop(1, false), first));
}

TEST(DeviceDraws, AFusedDropoutHasTheMaskAndTheGradientOfTheOtherOne) {
  for (const double p : {0.25, 1.0}) {
    const at::Tensor input = torch::randn({100}).to(kFirst).requires_grad_();
    const LayerScope scope(run_of(0));
    const auto [output, mask] = at::native_dropout(input, p, /*train=*/true);
    output.sum().backward();
    const at::Tensor scale = mask.to(at::kFloat) * (p < 1 ? 1 / (1 - p) : 0);
    EXPECT_TRUE(same_bits(output, input.detach() * scale));
    EXPECT_TRUE(same_bits(input.grad(), scale));
  }
}

TEST(DeviceDraws, OfFusedAttentionAreRefusedInARecompute) {
  const at::Tensor q = torch::zeros({2, 2, 4}).to(kFirst);
  const at::Tensor starts = torch::zeros({2}, torch::kInt).to(kFirst);
  const auto attend = [&](double p, bool recomputing) {
    const LayerScope scope(run_of(0, recomputing));
    at::_flash_scaled_dot_product_attention(q, q, q, starts, starts, 1, 1, p, /*is_causal=*/false);
  };
  try {
    attend(0.1, true);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "aten::_flash_scaled_dot_product_attention draws random numbers on cuda:0 that a recompute cannot "
                 "repeat; use gpipe::nn::Dropout in its place, or no recompute and no rematerialization of this layer");
  }
  // This device has no such operation.
  EXPECT_THROW(attend(0.1, false), c10::Error);
  EXPECT_THROW(attend(0, true), c10::Error);
}

}  // namespace
}  // namespace gpipe::test
