// Flows between ranks: every packet arrives as it was put, in order, and a peer that is gone is an error, not a wait.
#include "gpipe/transport/c10d/remote_flow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "gpipe/interpret/channel.h"
#include "ranks.h"
#include "tests/launch/programs.h"
#include "tests/model/same_bits.h"
#include "tests/os/comes_true.h"
#include "tests/os/reserved_port.h"

namespace gpipe::detail {
namespace {

using ::testing::HasSubstr;

Packet packet_of(int micro_batch, Tensors tensors, std::int64_t step = 0) {
  Packet packet;
  packet.step = step;
  packet.micro_batch = micro_batch;
  packet.tensors = std::move(tensors);
  return packet;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Rank 0 puts what `make` makes, rank 1 gives what arrives to `see`.
void send_through(int num_packets, RemoteFlowOptions options, const std::function<Packet(int)>& make,
                  const std::function<void(int, const Packet&)>& see) {
  run_ranks(2, [&](Peers& peers) {
    options.peer = 1 - peers.world().rank;
    if (peers.world().rank == 0) {
      FlowSender sender(peers, options);
      for (int index = 0; index < num_packets; ++index) sender.put(make(index));
    } else {
      FlowReceiver receiver(peers, options);
      for (int index = 0; index < num_packets; ++index) see(index, receiver.take(index));
    }
  });
}

// Everything that can lie in a tensor: each must arrive with the same type, shape, strides and bits.
Tensors all_kinds() {
  Tensors tensors;
  for (const auto dtype : {torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong, torch::kHalf,
                           torch::kFloat, torch::kDouble, torch::kComplexHalf, torch::kComplexFloat,
                           torch::kComplexDouble, torch::kBool, torch::kBFloat16}) {
    tensors.push_back(torch::arange(6, torch::kFloat).reshape({2, 3}).to(dtype));
  }
  tensors.push_back(at::Tensor());
  tensors.push_back(torch::empty({0}));
  tensors.push_back(torch::empty({3, 0, 2}, torch::kLong));
  tensors.push_back(torch::tensor(2.5));
  tensors.push_back(torch::full({1}, std::nan("")));
  tensors.push_back(torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  tensors.push_back(torch::randn({4, 5}).t());
  tensors.push_back(torch::randn(std::vector<std::int64_t>(64, 1)));
  return tensors;
}

TEST(RemoteFlow, EveryKindOfTensorArrivesAsItWasPut) {
  const Tensors kinds = all_kinds();
  RemoteFlowOptions options = flow_to(1);
  options.limits.max_tensors = static_cast<int>(kinds.size());
  options.checksum = true;
  const auto make = [&](int index) {
    Packet packet = packet_of(index, kinds);
    packet.requires_grad = {true, false, true};
    packet.versions = {static_cast<std::int64_t>(kinds[0]._version()), 5};
    return packet;
  };
  send_through(2, options, make, [&](int, const Packet& packet) {
    ASSERT_EQ(packet.tensors.size(), kinds.size());
    EXPECT_EQ(packet.requires_grad, std::vector<bool>({true, false, true}));
    EXPECT_EQ(packet.versions, std::vector<std::int64_t>({0, -1}));  // the second has been changed since
    for (std::size_t index = 0; index < kinds.size(); ++index) {
      const at::Tensor& tensor = packet.tensors[index];
      ASSERT_EQ(tensor.defined(), kinds[index].defined());
      if (!tensor.defined()) continue;
      EXPECT_TRUE(test::same_bits(tensor, kinds[index])) << index;
      if (tensor.numel() > 0) {
        EXPECT_EQ(tensor.strides(), kinds[index].strides()) << index;
      }
    }
  });
}

TEST(RemoteFlow, WhatHasGapsIsCopiedAndWhatIsConjugatedIsResolved) {
  const at::Tensor gaps = torch::arange(24, torch::kFloat).reshape({4, 6}).slice(1, 0, 6, 2);
  const at::Tensor wide = torch::arange(3, torch::kFloat).reshape({3, 1}).expand({3, 4});
  const at::Tensor conjugated = torch::randn({3}, torch::kComplexFloat).conj();
  const at::Tensor graph = torch::ones({2}, torch::requires_grad()) * 2;
  send_through(
      1, flow_to(1),
      [&](int index) {
        return packet_of(index, {gaps, wide, conjugated, graph});
      },
      [&](int, const Packet& packet) {
        EXPECT_TRUE(test::same_bits(packet.tensors[0], gaps));
        EXPECT_TRUE(test::same_bits(packet.tensors[1], wide));
        EXPECT_TRUE(test::same_bits(packet.tensors[2], conjugated));
        EXPECT_TRUE(test::same_bits(packet.tensors[3], graph));
        EXPECT_FALSE(packet.tensors[3].requires_grad());
      });
}

TEST(RemoteFlow, SixtyFourMebibytesArriveWhole) {
  const at::Tensor large = torch::randn({16, 1 << 20});
  send_through(
      3, flow_to(1), [&](int index) { return packet_of(index, {large + index}); },
      [&](int index, const Packet& packet) { EXPECT_TRUE(test::same_bits(packet.tensors[0], large + index)); });
}

TEST(RemoteFlow, ThousandsOfPacketsArriveInOrderWithShapesThatChange) {
  const auto make = [](int index) { return packet_of(index, {torch::full({1 + index % 7, index % 3}, index)}); };
  send_through(3000, flow_to(1, 4), make, [&](int index, const Packet& packet) {
    ASSERT_TRUE(test::same_bits(packet.tensors[0], make(index).tensors[0])) << index;
  });
}

TEST(RemoteFlow, ManyFlowsBetweenFourRanksDoNotMix) {
  run_ranks(4, [](Peers& peers) {
    const int rank = peers.world().rank;
    std::vector<std::unique_ptr<FlowSender>> senders;
    std::vector<std::unique_ptr<FlowReceiver>> receivers;
    for (int other = 0; other < 4; ++other) {
      if (other == rank) continue;
      RemoteFlowOptions options = flow_to(other);
      options.id = 4 * rank + other;
      senders.push_back(std::make_unique<FlowSender>(peers, options));
      options.id = 4 * other + rank;
      receivers.push_back(std::make_unique<FlowReceiver>(peers, options));
    }
    for (int micro_batch = 0; micro_batch < 50; ++micro_batch) {
      for (auto& sender : senders) sender->put(packet_of(micro_batch, {torch::full({100}, rank)}));
      int index = 0;
      for (int other = 0; other < 4; ++other) {
        if (other == rank) continue;
        EXPECT_TRUE(test::same_bits(receivers[index++]->take(micro_batch).tensors[0], torch::full({100}, other)));
      }
    }
    peers.leave_together();
  });
}

// Each packet is taken only when the sender is as far ahead as it may be, and after each put it must not be further.
TEST(RemoteFlow, ASenderIsNoFurtherAheadThanTheCapacityOfBothEnds) {
  constexpr int kCapacity = 3;
  constexpr int kNumTaken = 200;
  std::atomic<int> num_put{0};
  std::atomic<int> num_asked_for{0};  // before they are taken
  run_ranks(2, [&](Peers& peers) {
    if (peers.world().rank == 0) {
      FlowSender sender(peers, flow_to(1, kCapacity));
      std::thread putter([&] {
        EXPECT_THROW(
            while (true) {
              sender.put(packet_of(num_put, {torch::ones({8})}));
              EXPECT_LE(++num_put, num_asked_for + 2 * kCapacity);
            },
            CancelledError);
      });
      peers.store().wait({"taken"});
      EXPECT_TRUE(test::comes_true([&] { return num_put == kNumTaken + 2 * kCapacity; })) << num_put;
      sender.cancel();
      putter.join();
      peers.leave_together();
    } else {
      FlowReceiver receiver(peers, flow_to(0, kCapacity));
      for (int index = 0; index < kNumTaken; ++index) {
        if (!test::comes_true([&] { return num_put >= index + 2 * kCapacity; })) {
          ADD_FAILURE() << "the sender has put " << num_put << ", " << index << " are taken";
          break;
        }
        ++num_asked_for;
        receiver.take(index);
      }
      peers.store().set("taken", std::vector<std::uint8_t>());
      peers.leave_together();
    }
  });
}

TEST(RemoteFlow, CancelWakesATakerAtOnce) {
  run_ranks(2, [](Peers& peers) {
    if (peers.world().rank == 1) {
      FlowReceiver receiver(peers, flow_to(0));
      std::atomic<int> taker{0};
      auto taken = std::async(std::launch::async, [&] {
        taker = test::own_thread_number();
        receiver.take();
      });
      EXPECT_TRUE(test::comes_true([&] { return taker != 0 && test::is_asleep(taker); }));
      receiver.cancel();
      EXPECT_THROW(taken.get(), CancelledError);
      EXPECT_THROW(receiver.take(), CancelledError);
      receiver.reset();
      peers.store().set("go", std::vector<std::uint8_t>());
      EXPECT_TRUE(test::same_bits(receiver.take(0).tensors[0], torch::ones({2})));
    } else {
      peers.store().wait({"go"});
      FlowSender sender(peers, flow_to(1));
      sender.put(packet_of(0, {torch::ones({2})}, 1));
    }
  });
}

TEST(RemoteFlow, WhatIsLeftOfAnEarlierStepIsDropped) {
  run_ranks(2, [](Peers& peers) {
    if (peers.world().rank == 0) {
      FlowSender sender(peers, flow_to(1));
      for (int count = 0; count < 4; ++count) sender.put(packet_of(-1, {torch::ones({2})}, 7));
      sender.put(packet_of(-1, {torch::zeros({2})}, 8));
    } else {
      FlowReceiver receiver(peers, flow_to(0));
      EXPECT_TRUE(test::same_bits(receiver.take_of_step(7).tensors[0], torch::ones({2})));
      EXPECT_TRUE(test::same_bits(receiver.take_of_step(8).tensors[0], torch::zeros({2})));
    }
  });
}

TEST(RemoteFlow, APacketOfALaterStepEndsItAll) {
  const test::ReservedPort port;
  const auto errors = run_each(2, [&](int rank) {
    Peers peers(world_of(rank, 2, port.number()));
    if (rank == 0) {
      FlowSender sender(peers, flow_to(1));
      sender.put(packet_of(-1, {torch::ones({2})}, 8));
      peers.store().wait({"seen"});
      return;
    }
    FlowReceiver receiver(peers, flow_to(0));
    try {
      receiver.take_of_step(7);
      ADD_FAILURE();
    } catch (const ProtocolError& error) {
      EXPECT_STREQ(error.what(),
                   "rank 0 (host host0, stage 0), activation 0 -> 1: it sent a packet of step 8, but one of step 7 was "
                   "expected");
    }
    peers.store().set("seen", std::vector<std::uint8_t>());
  });
  EXPECT_EQ(text_of(errors[0]), "");
  EXPECT_EQ(text_of(errors[1]), "");
}

TEST(RemoteFlow, APacketOfAnotherMicroBatchEndsItAllWithTheSameError) {
  const test::ReservedPort port;
  const auto errors = run_each(2, [&](int rank) {
    Peers peers(world_of(rank, 2, port.number()));
    if (peers.world().rank == 0) {
      FlowSender sender(peers, flow_to(1));
      sender.put(packet_of(2, {torch::ones({2})}));
      peers.store().wait({"seen"});
      return;
    }
    FlowReceiver receiver(peers, flow_to(0));
    RemoteFlowOptions back = flow_to(0);
    back.id = 4;
    FlowSender sender(peers, back);
    std::string first;
    try {
      receiver.take(1);
      ADD_FAILURE();
    } catch (const ProtocolError& error) {
      first = error.what();
      EXPECT_EQ(error.place().rank, 0);
      EXPECT_EQ(first,
                "rank 0 (host host0, stage 0), activation 0 -> 1, micro-batch 1: it sent micro-batch 2, but 1 was "
                "expected");
    }
    for (const std::function<void()>& call : std::vector<std::function<void()>>{
             [&] { receiver.take(); }, [&] { sender.put(packet_of(0, {})); }, [&] { peers.check(); }}) {
      try {
        call();
        ADD_FAILURE();
      } catch (const ProtocolError& error) {
        EXPECT_EQ(error.what(), first);
      }
    }
    peers.store().set("seen", std::vector<std::uint8_t>());
    EXPECT_THROW(peers.leave_together(), ProtocolError);
  });
  EXPECT_EQ(text_of(errors[0]), "");
  EXPECT_EQ(text_of(errors[1]), "");
}

TEST(RemoteFlow, ASilentPeerIsAnErrorWithinTheTimeout) {
  const test::ReservedPort port;
  const auto errors = run_each(2, [&](int rank) {
    World world = world_of(rank, 2, port.number());
    world.timeout_seconds = 2;
    Peers peers(world);
    if (rank == 0) {
      EXPECT_TRUE(test::comes_true([&] { return peers.store().check({"done"}); }));
      return;
    }
    FlowReceiver receiver(peers, flow_to(0));
    const auto start = std::chrono::steady_clock::now();
    try {
      receiver.take(4);
      ADD_FAILURE();
    } catch (const PeerError& error) {
      EXPECT_NEAR(seconds_since(start), 2, 0.5);
      EXPECT_THAT(error.what(),
                  HasSubstr("rank 0 (host host0, stage 0), activation 0 -> 1, micro-batch 4: silent for 2 s"));
      EXPECT_EQ(error.place().rank, 0);
      EXPECT_EQ(error.place().host, "host0");
      EXPECT_EQ(error.place().micro_batch, 4);
      EXPECT_EQ(error.place().flow, "activation 0 -> 1");
    }
    peers.store().set("done", std::vector<std::uint8_t>());
  });
  EXPECT_EQ(text_of(errors[0]), "");
  EXPECT_EQ(text_of(errors[1]), "");
}

TEST(RemoteFlow, ASenderToASilentPeerFailsWithinTheTimeout) {
  const test::ReservedPort port;
  const auto errors = run_each(2, [&](int rank) {
    World world = world_of(rank, 2, port.number());
    world.timeout_seconds = 3;  // also to connect
    Peers peers(world);
    if (rank == 0) {
      EXPECT_TRUE(test::comes_true([&] { return peers.store().check({"done"}); }));
      return;
    }
    FlowSender sender(peers, flow_to(0, 1));
    sender.put(packet_of(0, {torch::ones({2})}));
    EXPECT_THROW(sender.put(packet_of(1, {torch::ones({2})})), PeerError);
    peers.store().set("done", std::vector<std::uint8_t>());
  });
  EXPECT_EQ(text_of(errors[0]), "");
  EXPECT_EQ(text_of(errors[1]), "");
}

TEST(RemoteFlow, WhenOneRankFailsTheOthersThatNeedItNoticeAtOnce) {
  const test::ReservedPort port;
  const auto errors = run_each(2, [&](int rank) {
    Peers peers(world_of(rank, 2, port.number()));
    if (rank == 1) {
      EXPECT_THROW(peers.fail(std::make_exception_ptr(PeerError({0, "", 0, "", -1}, "made up"))), PeerError);
      EXPECT_TRUE(test::comes_true([&] { return peers.store().check({"done"}); }));
      return;
    }
    FlowReceiver receiver(peers, flow_to(1));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(receiver.take(), PeerError);
    EXPECT_LT(seconds_since(start), 5);
    peers.store().set("done", std::vector<std::uint8_t>());
  });
  EXPECT_EQ(text_of(errors[0]), "");
  EXPECT_EQ(text_of(errors[1]), "");
}

TEST(RemoteFlow, WhatArrivedIsGivenEvenIfItsSenderHasLeft) {
  const test::ReservedPort port;
  std::promise<void> left;
  const auto errors = run_each(2, [&](int rank) {
    if (rank == 1) {
      {
        Peers peers(world_of(rank, 2, port.number()));
        FlowSender sender(peers, flow_to(0));
        sender.put(packet_of(0, {torch::ones({1000})}));
      }
      left.set_value();
      return;
    }
    Peers peers(world_of(rank, 2, port.number()));
    FlowReceiver receiver(peers, flow_to(1));
    EXPECT_EQ(left.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
    EXPECT_TRUE(test::same_bits(receiver.take(0).tensors[0], torch::ones({1000})));
    EXPECT_THROW(receiver.take(1), PeerError);
  });
  EXPECT_EQ(text_of(errors[0]), "");
  EXPECT_EQ(text_of(errors[1]), "");
}

// The other process of the test below: rank 1, which sends until it is killed.
const test::Program kPeerToBeKilled("PeerToBeKilled", [] {
  Peers peers(world_of(1, 2, std::atoi(std::getenv("GPIPE_TEST_PORT"))));
  FlowSender sender(peers, flow_to(0));
  for (int micro_batch = 0;; ++micro_batch) sender.put(packet_of(micro_batch, {torch::ones({1 << 18})}));
});

TEST(RemoteFlow, AKilledProcessIsAnErrorAtOnce) {
  const test::ReservedPort port;
  setenv("GPIPE_TEST_PORT", std::to_string(port.number()).c_str(), 1);
  std::vector<std::string> words = test::command_of_program("PeerToBeKilled");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t process = -1;
  ASSERT_EQ(posix_spawn(&process, arguments.front(), nullptr, nullptr, arguments.data(), environ), 0);
  Peers peers(world_of(0, 2, port.number()));
  FlowReceiver receiver(peers, flow_to(1));
  RemoteFlowOptions back = flow_to(1);
  back.id = 9;
  FlowSender sender(peers, back);
  for (int micro_batch = 0; micro_batch < 10; ++micro_batch) receiver.take(micro_batch);
  sender.put(packet_of(0, {torch::ones({1 << 20})}));
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  const auto start = std::chrono::steady_clock::now();
  try {
    for (int micro_batch = 10; micro_batch < 20; ++micro_batch) receiver.take(micro_batch);
    ADD_FAILURE();
  } catch (const PeerError& error) {
    EXPECT_EQ(error.place().rank, 1);
    EXPECT_THAT(error.what(), HasSubstr("lost, while this rank waited to receive"));
  }
  EXPECT_LT(seconds_since(start), 5);
  EXPECT_THROW(for (int count = 0; count < 10; ++count) sender.put(packet_of(count, {torch::ones({4})})), PeerError);
}

}  // namespace
}  // namespace gpipe::detail
