// Strangers at the ports: they are turned away, they keep nobody out, and they cost no more than a bounded memory.
#include <gloo/transport/tcp/address.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "gpipe/transport/c10d/proven_device.h"
#include "gpipe/transport/c10d/rank_listener.h"
#include "ranks.h"
#include "tests/model/same_bits.h"
#include "tests/os/comes_true.h"
#include "tests/os/reserved_port.h"

namespace gpipe::detail {
namespace {

// One connection that says something a rank would not say: random bytes, too few, far too many, a hello with a wrong
// proof, or nothing at all. It is kept open.
FileDescriptor bother(int port, std::mt19937& random) {
  FileDescriptor connection = connect_to("127.0.0.1", port, deadline_in(0.2));
  if (!connection.is_open()) return connection;
  const auto noise = [&](std::size_t size) {
    std::string bytes(size, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    return bytes;
  };
  const Hello hello;
  std::string message;
  switch (random() % 6) {
    case 0:
      message = noise(64);
      break;
    case 1:
      message = std::string(reinterpret_cast<const char*>(&hello), 1 + random() % 63);
      break;
    case 2:
      message = noise(100'000);
      break;
    case 3:
      message = std::string(reinterpret_cast<const char*>(&hello), sizeof hello) + noise(32);
      break;
    case 4:
      message = noise(1 + random() % 63);
      break;
    default:
      break;
  }
  write_all(connection.get(), message.data(), message.size(), deadline_in(0));
  return connection;
}

std::size_t num_open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

// Sockets of this process.
std::size_t num_listening() {
  std::size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    int listens = 0;
    socklen_t size = sizeof listens;
    const int number = std::stoi(file.path().filename());
    if (getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0) ++count;
  }
  return count;
}

TEST(Hostile, StrangersAtTheStoreKeepNoRankOut) {
  const test::ReservedPort port;
  std::atomic<bool> is_bothered{false};
  std::atomic<bool> is_done{false};
  std::atomic<int> num_connections{0};
  std::thread stranger([&] {
    std::mt19937 random(1);
    std::vector<FileDescriptor> open;
    while (num_connections < 2000 || !is_done) {
      FileDescriptor connection = bother(port.number(), random);
      if (connection.is_open() && open.size() < 300) open.push_back(std::move(connection));
      if (++num_connections == 1000) is_bothered = true;
      if (is_bothered && open.size() > 100) open.erase(open.begin(), open.begin() + 50);
    }
  });
  const at::Tensor sent = torch::arange(1 << 20, torch::kFloat);
  const auto errors = run_each(2, [&](int rank) {
    if (rank == 1 && !test::comes_true([&] { return is_bothered.load(); }, 60))
      ADD_FAILURE() << "nobody has bothered it";
    Peers peers(world_of(rank, 2, port.number()));
    if (rank == 0) {
      FlowSender sender(peers, flow_to(1));
      for (int micro_batch = 0; micro_batch < 20; ++micro_batch) {
        Packet packet;
        packet.step = 0;
        packet.micro_batch = micro_batch;
        packet.tensors = {sent + micro_batch};
        sender.put(packet);
      }
    } else {
      FlowReceiver receiver(peers, flow_to(0));
      for (int micro_batch = 0; micro_batch < 20; ++micro_batch) {
        EXPECT_TRUE(test::same_bits(receiver.take(micro_batch).tensors[0], sent + micro_batch));
      }
      // Everybody is in: nobody listens any more.
      EXPECT_FALSE(connect_to("127.0.0.1", port.number(), deadline_in(1)).is_open());
    }
    peers.leave_together();
  });
  is_done = true;
  stranger.join();
  EXPECT_EQ(text_of(errors[0]), "");
  EXPECT_EQ(text_of(errors[1]), "");
  EXPECT_GE(num_connections, 2000);
}

TEST(Hostile, ADeviceItselfListensNowhere) {
  const std::size_t num_before = num_listening();
  const auto device = ProvenDevice::make({"127.0.0.1", "secret", 1});
  EXPECT_EQ(num_listening(), num_before);
  const auto context = device->createContext(0, 2);
  context->createPair(1);
  EXPECT_EQ(num_listening(), num_before + 1);
}

TEST(Hostile, WhoTakesAPairWithoutTheSecretIsRefused) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = run_each(2, [&](int rank) {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(1));
    const auto device = ProvenDevice::make({"127.0.0.1", rank == 0 ? "secret" : "another", 1});
    options->devices = {device};
    device->keep_errors([&] { c10d::ProcessGroupGloo group(store, rank, 2, options); });
  });
  EXPECT_TRUE(is_a<PeerError>(errors[0])) << text_of(errors[0]);
  EXPECT_TRUE(is_a<HandshakeError>(errors[1])) << text_of(errors[1]);
  EXPECT_THAT(text_of(errors[1]), ::testing::HasSubstr("GPIPE_SECRET"));
}

TEST(Hostile, OnlySoManyWaitAtTheGate) {
  StoreServer server("127.0.0.1", 0, {"secret", Purpose::kStore, 0, 2, {0, 1}});
  const int port = server.port();
  std::vector<FileDescriptor> silent;
  for (int count = 0; count < 400; ++count) silent.push_back(connect_to("127.0.0.1", port, deadline_in(5)));
  // A rank comes in all the same.
  Hello hello;
  hello.size = 2;
  EXPECT_TRUE(join({"127.0.0.1", port}, "secret", hello, deadline_in(5)).is_open());
  EXPECT_THAT(server.refusals(), ::testing::HasSubstr("too many at once"));
  EXPECT_LT(num_open_files(), 400 + RankListener::kMostCandidates + 30);
}

TEST(Hostile, StrangersAtGloosPortsAreTurnedAway) {
  std::vector<std::shared_ptr<ProvenDevice>> devices;
  std::vector<std::shared_ptr<gloo::transport::Context>> contexts;
  std::vector<std::vector<char>> addresses;
  std::vector<int> ports;
  for (int rank = 0; rank < 2; ++rank) {
    devices.push_back(ProvenDevice::make({"127.0.0.1", "secret", 20}));
    contexts.push_back(devices[rank]->createContext(rank, 2));
    contexts[rank]->setTimeout(std::chrono::seconds(20));
    addresses.push_back(contexts[rank]->createPair(1 - rank)->address().bytes());
    const sockaddr_storage address = gloo::transport::tcp::Address(addresses[rank]).getSockaddr();
    ports.push_back(name_of(reinterpret_cast<const sockaddr*>(&address), sizeof address).port);
  }
  std::mt19937 random(2);
  std::vector<FileDescriptor> open;
  for (int count = 0; count < 100; ++count) {
    open.push_back(bother(ports[count % 2], random));
    EXPECT_TRUE(open.back().is_open());
  }
  std::atomic<bool> is_done{false};
  std::thread stranger([&] {
    std::mt19937 other(3);
    for (int count = 0; count < 1000 || !is_done; ++count) bother(ports[count % 2], other);
  });
  std::vector<float> sent(1 << 20, 1.5F);
  std::vector<float> got(sent.size());
  const auto errors = run_each(2, [&](int rank) {
    contexts[rank]->getPair(1 - rank)->connect(addresses[1 - rank]);
    std::vector<float>& values = rank == 0 ? sent : got;
    const auto buffer = contexts[rank]->createUnboundBuffer(values.data(), values.size() * sizeof(float));
    if (rank == 0) {
      buffer->send(1, 7);
      buffer->waitSend(std::chrono::milliseconds(20'000));
    } else {
      buffer->recv(0, 7);
      buffer->waitRecv(std::chrono::milliseconds(20'000));
    }
    EXPECT_FALSE(connect_to("127.0.0.1", ports[rank], deadline_in(1)).is_open());  // closed, once the peer has come
  });
  is_done = true;
  stranger.join();
  EXPECT_EQ(text_of(errors[0]), "");
  EXPECT_EQ(text_of(errors[1]), "");
  EXPECT_EQ(got, sent);
}

}  // namespace
}  // namespace gpipe::detail
