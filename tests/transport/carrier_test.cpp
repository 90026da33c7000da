// What moves the bytes of packets: which there is, and MPI, under mpirun.
#include "gpipe/transport/c10d/carrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "ranks.h"
#include "tests/launch/programs.h"
#include "tests/model/same_bits.h"
#include "tests/os/comes_true.h"
#include "tests/os/reserved_port.h"

namespace gpipe::detail {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What each of two ranks throws, as threads.
std::vector<std::exception_ptr> meet_with(const char* carrier) {
  setenv("GPIPE_CARRIER", carrier, 1);
  const test::ReservedPort port;
  auto errors = run_each(2, [&](int rank) { const Peers peers(world_of(rank, 2, port.number())); });
  unsetenv("GPIPE_CARRIER");
  return errors;
}

TEST(Carrier, GlooIsAlwaysThere) {
  for (const char* carrier : {"gloo", ""}) {
    for (const auto& error : meet_with(carrier)) EXPECT_EQ(text_of(error), "");
  }
}

TEST(Carrier, AnUnknownOneIsRefusedByName) {
  for (const auto& error : meet_with("pigeon")) {
    ASSERT_TRUE(is_a<EnvironmentError>(error)) << text_of(error);
    EXPECT_THAT(text_of(error), HasSubstr("GPIPE_CARRIER is 'pigeon', but what there is, is 'gloo'"));
  }
}

TEST(Carrier, MpiIsRefusedWhereItCannotBeUsed) {
#ifdef GPIPE_HAS_MPI
  const char* const why = "MPI counts this process as rank 0 of 1";  // nobody has started these ranks by mpirun
#else
  const char* const why = "this gpipe was built without MPI, and has 'gloo' only; unset it";
#endif
  for (const auto& error : meet_with("mpi")) {
    ASSERT_TRUE(is_a<EnvironmentError>(error)) << text_of(error);
    EXPECT_THAT(text_of(error), HasSubstr(why));
  }
}

// The rest are programs that mpirun starts, as each of its ranks.

RemoteFlowOptions flow_between(int peer, int id) {
  RemoteFlowOptions options = flow_to(peer, /*capacity=*/3);
  options.id = id;
  options.checksum = true;
  return options;
}

// Of that flow's packet; sizes on both sides of what MPI sends at once.
at::Tensor values_of(int flow, int micro_batch) {
  const std::int64_t sizes[] = {1, 100, 5'000, 70'001, 1'000'000};
  return torch::full({sizes[micro_batch % 5]}, 1000 * flow + micro_batch, torch::kInt);
}

void expect_all_to_all(Peers& peers) {
  const World& world = peers.world();
  EXPECT_NE(&peers.carrier(), &peers.header_carrier());
  constexpr int kNumPackets = 20;
  std::vector<std::thread> threads;
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer == world.rank) continue;
    threads.emplace_back([&, peer] {
      const int flow = world.rank * world.size + peer;
      FlowSender sender(peers, flow_between(peer, flow));
      for (int micro_batch = 0; micro_batch < kNumPackets; ++micro_batch) {
        Packet packet;
        packet.step = 0;
        packet.micro_batch = micro_batch;
        packet.tensors = {values_of(flow, micro_batch), at::Tensor(), values_of(flow, micro_batch + 1)};
        sender.put(packet);
      }
    });
    threads.emplace_back([&, peer] {
      const int flow = peer * world.size + world.rank;
      FlowReceiver receiver(peers, flow_between(peer, flow));
      for (int micro_batch = 0; micro_batch < kNumPackets; ++micro_batch) {
        const Packet packet = receiver.take(micro_batch);
        EXPECT_TRUE(test::same_bits(packet.tensors.at(0), values_of(flow, micro_batch)));
        EXPECT_TRUE(test::same_bits(packet.tensors.at(2), values_of(flow, micro_batch + 1)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Packets arrive as they were put, between all ranks.
const test::Program kPacketsBetweenAll("PacketsBetweenAll", [] {
  for (int run = 0; run < 2; ++run) {  // the second world uses the same numbers for its flows
    Peers peers(read_world());
    expect_all_to_all(peers);
    peers.leave_together();
  }
});

// What is left of a world must not arrive in the next one.
const test::Program kWorldAfterWorld("WorldAfterWorld", [] {
  for (int run = 0; run < 2; ++run) {
    Peers peers(read_world());
    const int rank = peers.world().rank;
    if (rank == 0) {
      Packet packet;
      packet.micro_batch = 0;
      packet.tensors = {torch::full({10}, run)};
      FlowSender sender(peers, flow_between(1, 3));
      sender.put(packet);
      if (run == 0) sender.cancel();  // nobody receives it
    }
    if (rank == 1 && run == 1) {
      FlowReceiver receiver(peers, flow_between(0, 3));
      EXPECT_EQ(receiver.take(0).tensors.at(0)[0].item<int>(), 1);
    }
    peers.leave_together();
  }
});

std::string error_of(const Carrier::Work& work) {
  try {
    work->wait();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// A rank that is killed ends what waits for its bytes. Of two ranks; mpirun has to let the other one live.
const test::Program kKilledRank("KilledRank", [] {
  Peers peers(read_world());
  if (peers.world().rank == 1) {
    EXPECT_TRUE(test::comes_true([&] { return peers.store().check({"waiting"}); }));
    raise(SIGKILL);
  }
  const Carrier::Work received = peers.carrier().receive(torch::empty({100}, torch::kByte), 1, 7);
  const Carrier::Work sent = peers.carrier().send(torch::ones({1 << 24}, torch::kByte), 1, 8);
  peers.store().set("waiting", std::vector<std::uint8_t>());
  for (const Carrier::Work& work : {received, sent}) {
    EXPECT_THAT(error_of(work), AllOf(Not(IsEmpty()), Not(HasSubstr("imed out"))));  // it does not wait that long
  }
  FlowReceiver receiver(peers, flow_to(1));
  try {
    receiver.take();
    FAIL();
  } catch (const PeerError& error) {
    EXPECT_EQ(error.place().rank, 1);
    std::printf("%s\n", error.what());
  }
});

// From rank 0 to rank 1, in GB/s; for those who want to know.
const test::Program kBandwidth("Bandwidth", [] {
  Peers peers(read_world());
  const World& world = peers.world();
  constexpr int kNumPackets = 30;
  for (const std::int64_t bytes : {std::int64_t{1} << 12, std::int64_t{1} << 20, std::int64_t{1} << 24}) {
    const int flow = peers.reserve_flows(1, FlowScope::kWorld);
    RemoteFlowOptions options = flow_to(world.rank == 0 ? 1 : 0, /*capacity=*/4);
    options.id = flow;
    const at::Tensor values = torch::ones({bytes}, torch::kByte);
    if (world.rank == 0) {
      FlowSender sender(peers, options);
      for (int index = 0; index < kNumPackets; ++index) {
        Packet packet;
        packet.micro_batch = index;
        packet.tensors = {values};
        sender.put(packet);
      }
      sender.flush();
    } else if (world.rank == 1) {
      FlowReceiver receiver(peers, options);
      receiver.take(0);
      const auto start = std::chrono::steady_clock::now();
      for (int index = 1; index < kNumPackets; ++index) receiver.take(index);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      std::printf("%s: %lld bytes: %.0f us each, %.2f GB/s\n", name(wanted_carrier()).c_str(),
                  static_cast<long long>(bytes), 1e6 * seconds / (kNumPackets - 1),
                  1e-9 * static_cast<double>(bytes) * (kNumPackets - 1) / seconds);
    }
  }
  peers.leave_together();
});

}  // namespace
}  // namespace gpipe::detail
