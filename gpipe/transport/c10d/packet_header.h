// PacketHeader: what goes before the tensors of a packet, in a fixed number of bytes. docs/launching.md has the layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/transport/host_copies.h"
#include "gpipe/transport/packet.h"

namespace gpipe::detail {

// What both ends of a flow agree on beforehand.
struct FlowLimits {
  int max_tensors = 8;                 // of a packet; decides the size of the header
  std::int64_t max_bytes = 8LL << 30;  // of a packet's tensors
  static constexpr int kMostTensors = 1024;
  static constexpr int kMostDims = 64;
};

// A packet as it travels: contiguous memory and its description.
struct SentPacket {
  std::vector<char> header;
  Tensors payload;                                 // one-dimensional bytes; what has none is left out
  std::vector<std::shared_ptr<c10::Event>> whole;  // the payload has its values behind them
};

// What a header says; `tensors` are made, but have no values yet.
struct ReceivedPacket {
  Packet packet;
  Tensors payload;  // views of the tensors' memory, to be received into, in order
  std::optional<std::uint64_t> checksum;
};

std::size_t header_bytes(const FlowLimits& limits);

// Tensors whose elements lie close together in any order of the dimensions are sent as they lie, and arrive with the
// same strides; others are copied first, and so are those on other devices, which arrive on the CPU. Throws
// InvalidArgument for a tensor that is not dense, on the Meta device or quantized, and for a packet beyond the limits.
SentPacket describe(const Packet& packet, int flow, const FlowLimits& limits, HostCopies& copies);
// REQUIRES: the payload has its values.
void add_checksum(SentPacket& packet);

// Throws InvalidArgument, which says why, if the header is not one of this flow or beyond the limits, before it makes
// any tensor. They are in pinned memory if they are to be `pinned`.
ReceivedPacket read_header(const std::vector<char>& header, int flow, const FlowLimits& limits, bool pinned = false);

// The first 8 bytes of the SHA-256 sum of all tensors, in order.
std::uint64_t checksum_of(const Tensors& payload);

}  // namespace gpipe::detail
