// The header of a packet: what fits goes there and back, what does not is refused before anything is made of it.
#include "gpipe/transport/c10d/packet_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

using ::testing::HasSubstr;

// Positions in the header, as docs/launching.md has them.
constexpr std::size_t kNumTensors = 28;
constexpr std::size_t kFirstTensor = 64;
constexpr std::size_t kNumDims = kFirstTensor + 6;
constexpr std::size_t kSizes = kFirstTensor + 16;
constexpr std::size_t kStrides = kSizes + 8 * 64;

Packet packet_of(Tensors tensors) {
  Packet packet;
  packet.step = 5;
  packet.micro_batch = 2;
  packet.tensors = std::move(tensors);
  return packet;
}

HostCopies& copies() {
  static HostCopies copies;
  return copies;
}

template <typename Value>
std::vector<char> with(std::vector<char> header, std::size_t position, Value value) {
  std::memcpy(header.data() + position, &value, sizeof value);
  return header;
}

std::string refusal(const std::vector<char>& header, const FlowLimits& limits = {}) {
  try {
    read_header(header, 3, limits);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(PacketHeader, SaysAllButTheValues) {
  Packet packet = packet_of({torch::zeros({2, 3}), at::Tensor(), torch::zeros({0, 4}, torch::kLong), torch::zeros({})});
  packet.requires_grad = {true, false, false, true};
  packet.loss_has_weights = true;
  packet.versions = {7, -1};
  const SentPacket sent = describe(packet, 3, {}, copies());
  EXPECT_EQ(sent.header.size(), header_bytes({}));
  EXPECT_EQ(sent.payload.size(), 2U);
  const ReceivedPacket received = read_header(sent.header, 3, {});
  EXPECT_EQ(received.packet.step, 5);
  EXPECT_EQ(received.packet.micro_batch, 2);
  EXPECT_EQ(received.packet.requires_grad, packet.requires_grad);
  EXPECT_TRUE(received.packet.loss_has_weights);
  EXPECT_EQ(received.packet.versions, packet.versions);
  ASSERT_EQ(received.packet.tensors.size(), 4U);
  EXPECT_FALSE(received.packet.tensors[1].defined());
  EXPECT_EQ(received.packet.tensors[2].sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(received.packet.tensors[2].scalar_type(), torch::kLong);
  EXPECT_EQ(received.packet.tensors[3].dim(), 0);
}

TEST(PacketHeader, WhatCannotBeSentIsRefused) {
  const auto refuses = [](const at::Tensor& tensor, const char* why) {
    try {
      describe(packet_of({tensor}), 3, {}, copies());
      ADD_FAILURE() << why;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  refuses(torch::eye(2).to_sparse(), "not dense");
  refuses(torch::quantize_per_tensor(torch::ones({2}), 0.1, 0, torch::kQInt8), "quantized");
  refuses(torch::empty({2}, torch::kMeta), "meta");
  FlowLimits limits;
  limits.max_bytes = 15;
  EXPECT_THROW(describe(packet_of({torch::ones({4})}), 3, limits, copies()), InvalidArgument);
  EXPECT_THROW(describe(packet_of(Tensors(9)), 3, {}, copies()), InvalidArgument);
}

TEST(PacketHeader, WhatDoesNotFitIsRefused) {
  const std::vector<char> good = describe(packet_of({torch::zeros({2, 3})}), 3, {}, copies()).header;
  ASSERT_EQ(refusal(good), "");
  EXPECT_THAT(refusal(with(good, 0, 0x01020304)), HasSubstr("begins with"));
  EXPECT_THAT(refusal(with(good, 4, 2)), HasSubstr("version 2"));
  EXPECT_THAT(refusal(with(good, 8, 4)), HasSubstr("of flow 4, not 3"));
  EXPECT_THAT(refusal(with(good, kNumTensors, 9)), HasSubstr("9 tensors"));
  EXPECT_THAT(refusal(with(good, kNumTensors, -1)), HasSubstr("4294967295 tensors"));
  EXPECT_THAT(refusal(with(good, kFirstTensor, 999)), HasSubstr("element type"));
  EXPECT_THAT(refusal(with(good, kFirstTensor, -1)), HasSubstr("element type"));
  EXPECT_THAT(refusal(with(good, kNumDims, std::uint16_t{65})), HasSubstr("65 dimensions"));
  EXPECT_THAT(refusal(with(good, kSizes, std::int64_t{-2})), HasSubstr("negative"));
  EXPECT_THAT(refusal(with(good, kSizes, std::numeric_limits<std::int64_t>::max())), HasSubstr("beyond"));
  EXPECT_THAT(refusal(with(good, kSizes, std::int64_t{1} << 40)), HasSubstr("beyond"));
  EXPECT_THAT(refusal(with(good, kStrides, std::int64_t{4})), HasSubstr("gaps or overlap"));
  EXPECT_THAT(refusal(with(good, kStrides, std::int64_t{0})), HasSubstr("gaps or overlap"));
  EXPECT_THAT(refusal(std::vector<char>(64)), HasSubstr("64 bytes"));
}

TEST(PacketHeader, TheSizesOfATensorWithoutElementsAreCheckedToo) {
  const std::vector<char> good = describe(packet_of({torch::zeros({0, 3})}), 3, {}, copies()).header;
  const std::size_t second = kSizes + sizeof(std::int64_t);
  EXPECT_EQ(refusal(with(good, second, std::int64_t{1} << 40)), "");
  EXPECT_THAT(refusal(with(good, second, std::int64_t{-2})), HasSubstr("negative"));
  EXPECT_THAT(refusal(with(good, second, std::numeric_limits<std::int64_t>::max())), HasSubstr("beyond"));
}

TEST(PacketHeader, RandomChangesGiveAPacketWithinTheLimitsOrAnError) {
  std::mt19937 random(4);
  FlowLimits limits;
  limits.max_bytes = 1 << 16;
  const std::vector<char> good =
      describe(packet_of({torch::zeros({2, 3}), torch::zeros({1, 2, 1}, torch::kByte)}), 3, limits, copies()).header;
  int num_refused = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::vector<char> header = good;
    for (int change = 0; change <= trial % 4; ++change) {
      header[random() % (trial % 2 == 0 ? 160 : header.size())] = static_cast<char>(random());
    }
    try {
      std::int64_t bytes = 0;
      for (const at::Tensor& tensor : read_header(header, 3, limits).payload) {
        bytes += static_cast<std::int64_t>(tensor.nbytes());
      }
      EXPECT_LE(bytes, limits.max_bytes);
    } catch (const InvalidArgument&) {
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 1000);
}

}  // namespace
}  // namespace gpipe::detail
