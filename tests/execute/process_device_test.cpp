// Stages on devices, over processes: the same bits as on the CPU of one. On a device that keeps its memory in host RAM.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/all_ranks.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/replica_share.h"
#include "gpipe/transport/stage_stream.h"
#include "tests/execute/rank_processes.h"
#include "tests/execute/training.h"
#include "tests/model/same_bits.h"
#include "tests/os/reserved_port.h"
#include "tests/transport/host_device.h"
#include "tests/transport/ranks.h"

namespace gpipe::test {
namespace {

using Work = std::function<void(const std::shared_ptr<Peers>& peers)>;

// Autograd has a thread of its own for each device, in which this one's operations run on the CPU: with as many threads
// as a stage has.
class ProcessDevices : public ::testing::Test {
 protected:
  ProcessDevices() { at::set_num_threads(1); }
};

const std::vector<torch::Device>& two_devices() {
  static const std::vector<torch::Device> devices = {{kHostDevice, 0}, {kHostDevice, 1}};
  return devices;
}

void run_on_ranks(int num_replicas, int num_stages, const Work& work) {
  const ReservedPort port;
  const int size = num_replicas * num_stages;
  for (const std::exception_ptr& error : run_each(size, [&](int rank) {
         World world = world_of(rank, size, port.number());
         world.num_replicas = num_replicas;
         work(std::make_shared<Peers>(world));
       })) {
    EXPECT_EQ(text_of(error), "");
  }
}

LayerChain small_chain() {
  LayerChain chain;
  chain.add<torch::nn::Linear>("first", 3, 4);
  chain.add<nn::DeferredBatchNorm1d>("norm", torch::nn::BatchNormOptions(4));
  chain.add<torch::nn::Tanh>("tanh");
  chain.add<torch::nn::Linear>("last", 4, 2);
  return chain;
}

PipelineOptions small_options(const std::shared_ptr<Peers>& peers) {
  return PipelineOptions(2).num_micro_batches(2).balance({2, 2}).seed(5).peers(peers);
}

at::Tensor small_input() { return torch::arange(24, torch::kFloat).view({8, 3}).sin(); }
at::Tensor small_target() { return torch::arange(16, torch::kFloat).view({8, 2}) / 16; }

// Gradients, parameters and buffers; those of `pipeline` are on a device.
void expect_same_state(const Pipeline& pipeline, const Pipeline& expected) {
  ASSERT_FALSE(pipeline->named_parameters().is_empty());
  for (const auto& parameter : pipeline->named_parameters()) {
    const at::Tensor other = expected->named_parameters()[parameter.key()];
    EXPECT_EQ(parameter.value().device().type(), kHostDevice) << parameter.key();
    expect_same_bits(parameter.value(), other, parameter.key());
    expect_same_bits(parameter.value().grad(), other.grad(), parameter.key() + ".grad");
  }
  for (const auto& buffer : pipeline->named_buffers()) {
    expect_same_bits(buffer.value(), expected->named_buffers()[buffer.key()], buffer.key());
  }
}

TEST(HostDevice, ItsMemoryCannotBeReadOnTheHost) {
  const at::Tensor values = torch::ones({3});
  const at::Tensor there = values.to(two_devices()[1]);
  EXPECT_NE(*static_cast<const float*>(there.data_ptr()), 1.0F);
  EXPECT_TRUE(same_bits((there + there).cpu(), values + values));
}

TEST_F(ProcessDevices, APacketArrivesOnTheCpuWithTheSameBitsAndStrides) {
  const Tensors sent = {torch::randn({3, 4}), torch::randn({3, 4}).t(), torch::tensor({true, false}),
                        at::Tensor(),         torch::empty({0}),        torch::arange(5)};
  run_ranks(2, [&](Peers& peers) {
    detail::RemoteFlowOptions options = flow_to(1 - peers.world().rank);
    options.checksum = true;
    if (peers.world().rank == 0) {
      detail::Packet packet;
      packet.micro_batch = 0;
      for (const at::Tensor& tensor : sent) {
        packet.tensors.push_back(tensor.defined() ? tensor.to(two_devices()[1]) : tensor);
      }
      const detail::StageStream stream(two_devices()[1]);
      packet.ready = stream.record();
      detail::FlowSender sender(peers, options);
      host_device::Guard::waited().clear();
      sender.put(packet);
      // What copies waits for what has computed.
      const c10::Stream current = host_device::Guard().getStream(two_devices()[1]);
      EXPECT_THAT(host_device::Guard::waited(), testing::Contains(current));
    } else {
      detail::FlowReceiver receiver(peers, options);
      const detail::Packet packet = receiver.take(0);
      ASSERT_EQ(packet.tensors.size(), sent.size());
      for (std::size_t index = 0; index < sent.size(); ++index) {
        EXPECT_TRUE(same_bits(packet.tensors[index], sent[index])) << index;
        if (!sent[index].defined()) continue;
        EXPECT_TRUE(packet.tensors[index].is_cpu());
        EXPECT_EQ(packet.tensors[index].strides(), sent[index].strides()) << index;
      }
    }
  });
}

// A skip over two stages, and a last layer that uses the first one's weight. Convolutions do not run on this device.
TestModel with_skip_and_tie() {
  TestModel model{"skip and tie", {}, torch::randn({16, 6}), torch::randn({16, 6}), squared_error};
  model.chain.add<torch::nn::Linear>("embed", 6, 6);
  model.chain.add<Stash>("stash");
  for (const char* name : {"one", "two", "three"}) {
    model.chain.add<torch::nn::Linear>(name, 6, 6).add<torch::nn::Tanh>(std::string(name) + "_tanh");
  }
  model.chain.add<PopAndConcatenate>("pop").add<torch::nn::Linear>("narrow", 12, 6);
  model.chain.add<torch::nn::Linear>("head", 6, 6).tie("embed.weight", "head.weight");
  return model;
}

// The processes of the test below.
const Program kOnDevices("OnDevices", [] {
  at::set_num_threads(1);
  const auto peers = std::make_shared<Peers>(read_world());
  torch::manual_seed(1);
  for (const TestModel& model : {mlp(true), transformer(true), with_skip_and_tie()}) {
    // The device computes on copies without gaps, where the CPU has strides, so that attention has other bits on it.
    const auto on_threads = PipelineOptions(1).num_micro_batches(kNumMicroBatches).devices(two_devices());
    const Trained expected = model.name == "transformer"
                                 ? train_pipelined(model, 13, PipelineOptions(on_threads).peers(no_peers()))
                                 : train_plainly(model, 13);
    for (const char* schedule : {"1f1b", "interleaved"}) {
      SCOPED_TRACE(testing::Message() << model.name << ", " << schedule);
      const int num_stages = schedule == std::string("1f1b") ? 2 : 4;
      PipelineOptions options = PipelineOptions(2)
                                    .num_micro_batches(kNumMicroBatches)
                                    .schedule(schedule)
                                    .recompute(Recompute::kExceptLast)
                                    .balance(even_balance(model.chain.size(), num_stages))
                                    .devices(two_devices())
                                    .peers(peers);
      const Trained got = train_pipelined(model, 13, options);
      for (const auto& [name, tensor] : got.tensors) {
        ASSERT_TRUE(expected.tensors.count(name)) << name;
        EXPECT_EQ(tensor.is_cpu(), name.rfind("loss", 0) == 0) << name;
        expect_same_bits(tensor, expected.tensors.at(name), name);
      }
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
  }
  peers->leave_together();
});

TEST_F(ProcessDevices, ProcessesOnDevicesTrainAsThePlainModelDoes) {
  RankProcesses ranks(2, "OnDevices", 60);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.wait(rank, 200), 0) << "rank " << rank << ": " << ranks.output(rank);
  }
}

TEST_F(ProcessDevices, ThreadsOnDevicesTrainSkipsAndTiesAsThePlainModelDoes) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const TestModel model = with_skip_and_tie();
  const Trained expected = train_plainly(model, 13);
  for (const int num_stages : {2, 4}) {
    // The stages of the tied weight are on one device.
    std::vector<torch::Device> devices(static_cast<std::size_t>(num_stages), two_devices()[1]);
    devices.front() = devices.back() = two_devices()[0];
    if (num_stages == 2) devices = {two_devices()[0]};
    const Trained got = train_pipelined(model, 13,
                                        PipelineOptions(num_stages)
                                            .num_micro_batches(kNumMicroBatches)
                                            .balance(even_balance(model.chain.size(), num_stages))
                                            .devices(devices)
                                            .peers(no_peers()));
    for (const auto& [name, tensor] : got.tensors) expect_same_bits(tensor, expected.tensors.at(name), name);
  }
}

TEST_F(ProcessDevices, AStageOnTheCpuMayFollowOneOnADevice) {
  for (const bool device_first : {true, false}) {
    std::vector<torch::Device> devices = {two_devices()[0], torch::kCPU};
    if (!device_first) std::swap(devices[0], devices[1]);
    Pipeline expected(small_chain(), small_options(no_peers()));
    const at::Tensor loss = expected->train_step(small_input(), small_target(), torch::nn::MSELoss()).loss;
    Pipeline threads(small_chain(), small_options(no_peers()).devices(devices));
    expect_same_bits(threads->train_step(small_input(), small_target(), torch::nn::MSELoss()).loss, loss,
                     "loss on threads");
    run_on_ranks(1, 2, [&](const std::shared_ptr<Peers>& peers) {
      Pipeline pipeline(small_chain(), small_options(peers).devices(devices));
      expect_same_bits(pipeline->train_step(small_input(), small_target(), torch::nn::MSELoss()).loss, loss, "loss");
      for (const auto& parameter : pipeline->named_parameters()) {
        EXPECT_EQ(parameter.value().is_cpu(), device_first == (peers->world().rank == 1));
        expect_same_bits(parameter.value().grad(), expected->named_parameters()[parameter.key()].grad(),
                         parameter.key());
      }
    });
  }
}

// Inputs on the CPU; what comes out is where the last stage is, on every rank.
void expect_autograd_as(const Pipeline& expected, Pipeline& pipeline) {
  const auto run = [](Pipeline& tried, at::Tensor& scale) {
    scale = torch::full({}, 2.0, torch::requires_grad());
    at::Tensor out = tried->forward(small_input() * scale);
    (out * small_target().to(out.device())).sum().backward();
    return out;
  };
  Pipeline plain = expected;
  at::Tensor expected_scale;
  at::Tensor scale;
  plain->zero_grad();
  const at::Tensor expected_out = run(plain, expected_scale);
  const at::Tensor out = run(pipeline, scale);
  EXPECT_EQ(out.device(), two_devices()[1]);
  expect_same_bits(out, expected_out, "output");
  expect_same_bits(scale.grad(), expected_scale.grad(), "scale");
  expect_same_state(pipeline, plain);
}

TEST_F(ProcessDevices, AutogradGoesThroughThreads) {
  Pipeline pipeline(small_chain(), small_options(no_peers()).devices(two_devices()));
  expect_autograd_as(Pipeline(small_chain(), small_options(no_peers())), pipeline);
}

TEST_F(ProcessDevices, OneThatIsNotThereIsRefusedByTheRankThatNeedsIt) {
  const auto make = [](const std::shared_ptr<Peers>& peers) {
    Pipeline(small_chain(), small_options(peers).devices({{kHostDevice, 0}, {kHostDevice, 2}}));
  };
  const char* const what = "devices names xpu:2, but this host has 2 xpu devices, xpu:0 to xpu:1; name one of them";
  try {
    make(no_peers());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()), what);
  }
  const ReservedPort port;
  const auto errors = run_each(2, [&](int rank) { make(std::make_shared<Peers>(world_of(rank, 2, port.number()))); });
  EXPECT_TRUE(is_a<FingerprintError>(errors[0])) << text_of(errors[0]);
  EXPECT_EQ(text_of(errors[1]), what);
}

TEST_F(ProcessDevices, AutogradGoesThroughAllOfThem) {
  run_on_ranks(1, 2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers).devices(two_devices()));
    expect_autograd_as(Pipeline(small_chain(), small_options(no_peers())), pipeline);
    pipeline->eval();
    const at::NoGradGuard no_grad;
    EXPECT_EQ(pipeline->forward(small_input()).device(), two_devices()[1]);
  });
}

TEST_F(ProcessDevices, NormsMetricsAndWeightsAreThoseOfTheCpu) {
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    const at::Tensor error = outputs[0] - targets[0];
    return LossValue((error * error).mean(), {{"error", error.detach()}, {"largest", error.detach().abs().max()}});
  };
  Pipeline expected(small_chain(), small_options(no_peers()));
  const StepResult step = expected->train_step({small_input()}, {small_target()}, loss);
  const double norm = clip_grad_norm_(expected, 0.01);
  const NamedTensors weights = gather_weights(expected);
  run_on_ranks(1, 2, [&](const std::shared_ptr<Peers>& peers) {
    Pipeline pipeline(small_chain(), small_options(peers).devices(two_devices()).check_loss(true));
    const at::Tensor input = small_input().requires_grad_();
    const StepResult got = pipeline->train_step({input}, {small_target()}, loss);
    EXPECT_TRUE(input.grad().defined());
    expect_same_bits(got.loss, step.loss, "loss");
    for (const auto& [name, metric] : step.metrics) expect_same_bits(got.metrics.at(name), metric, name);
    EXPECT_EQ(clip_grad_norm_(pipeline, 0.01), norm);
    expect_same_state(pipeline, expected);
    const NamedTensors gathered = gather_weights(pipeline);
    ASSERT_EQ(gathered.size(), peers->world().rank == 0 ? weights.size() : 0U);
    for (std::size_t index = 0; index < gathered.size(); ++index) {
      EXPECT_TRUE(gathered[index].second.is_cpu());
      expect_same_bits(gathered[index].second, weights[index].second, weights[index].first);
    }
  });
}

TEST_F(ProcessDevices, ReplicasAddUpAsOnTheCpu) {
  const auto train = [](const std::shared_ptr<Peers>& peers, const std::vector<torch::Device>& devices) {
    Pipeline pipeline(small_chain(), small_options(peers).devices(devices));
    torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      pipeline->train_step(replica_share(small_input(), peers->world()), replica_share(small_target(), peers->world()),
                           torch::nn::MSELoss());
      optimizer.step();
    }
    return pipeline;
  };
  run_on_ranks(2, 2, [&](const std::shared_ptr<Peers>& peers) {
    const Pipeline expected = train(peers, {});
    expect_same_state(train(peers, two_devices()), expected);
  });
}

}  // namespace
}  // namespace gpipe::test
