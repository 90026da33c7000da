#include "gpipe/transport/c10d/packet_header.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

constexpr std::uint32_t kPacketMagic = 0x6b707067;  // "gppk"; reads otherwise on a machine of the other byte order
constexpr std::uint32_t kPacketVersion = 1;
// Bits of the flags.
constexpr std::uint32_t kHasChecksum = 1;
constexpr std::uint32_t kLossHasWeights = 2;

struct FixedPart {
  std::uint32_t magic = kPacketMagic;
  std::uint32_t version = kPacketVersion;
  std::uint32_t flow = 0;
  std::uint32_t flags = 0;
  std::int64_t step = 0;
  std::int32_t micro_batch = 0;
  std::uint32_t num_tensors = 0;
  std::uint32_t num_requires_grad = 0;
  std::uint32_t num_versions = 0;
  std::uint64_t checksum = 0;
  std::array<char, 16> unused{};
};
static_assert(sizeof(FixedPart) == 64);

struct TensorPart {
  std::int32_t dtype = 0;  // c10::ScalarType
  std::uint8_t is_defined = 0;
  std::uint8_t requires_grad = 0;  // of the packet's list, not of the tensor
  std::uint16_t num_dims = 0;
  std::int64_t version = 0;  // of the packet's list
  std::array<std::int64_t, FlowLimits::kMostDims> sizes{};
  std::array<std::int64_t, FlowLimits::kMostDims> strides{};
};
static_assert(sizeof(TensorPart) == 16 + 2 * 8 * FlowLimits::kMostDims);

void check_sendable(const at::Tensor& tensor, std::size_t index) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(fmt::format("tensor {} of the packet cannot be sent to another process: {}", index, why));
  };
  if (tensor.layout() != c10::kStrided) refuse("it is not dense; send its parts, or make it dense");
  if (tensor.is_meta()) refuse("it is on meta, and has no values");
  if (tensor.is_quantized()) refuse("it is quantized; send its int_repr()");
  if (tensor.dim() > FlowLimits::kMostDims) {
    refuse(fmt::format("it has {} dimensions, more than {}", tensor.dim(), FlowLimits::kMostDims));
  }
}

at::Tensor bytes_view(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())}, [tensor](void*) {},
      at::TensorOptions(at::kByte));
}

[[noreturn]] void refuse_header(const std::string& why) { throw InvalidArgument("its header does not fit: " + why); }

bool has_elements(const TensorPart& part) {
  return std::none_of(part.sizes.begin(), part.sizes.begin() + part.num_dims,
                      [](std::int64_t size) { return size == 0; });
}

// The bytes of a tensor, checked: they are whole, within the limit, and close together.
std::int64_t checked_bytes(const TensorPart& part, std::size_t index, std::int64_t limit) {
  const auto refuse = [&](const std::string& why) { refuse_header(fmt::format("tensor {} {}", index, why)); };
  if (part.dtype < 0 || part.dtype >= static_cast<std::int32_t>(c10::ScalarType::Undefined) ||
      c10::isQIntType(static_cast<c10::ScalarType>(part.dtype))) {
    refuse(fmt::format("has no element type that is known here ({})", part.dtype));
  }
  if (part.num_dims > FlowLimits::kMostDims) refuse(fmt::format("has {} dimensions", part.num_dims));
  const auto element = static_cast<std::int64_t>(c10::elementSize(static_cast<c10::ScalarType>(part.dtype)));
  // One without elements has no bytes, but libtorch multiplies its other sizes all the same.
  const std::int64_t most = has_elements(part) ? limit : std::numeric_limits<std::int64_t>::max();
  std::int64_t bytes = element;
  std::vector<int> order;
  for (int dim = 0; dim < part.num_dims; ++dim) {
    const std::int64_t size = part.sizes[dim];
    if (size < 0 || part.strides[dim] < 0) refuse(fmt::format("has a negative size or stride in dimension {}", dim));
    if (size > most / bytes) refuse(fmt::format("takes the packet beyond {} bytes", most));
    bytes *= std::max<std::int64_t>(size, 1);
    if (size > 1) order.push_back(dim);
  }
  if (!has_elements(part)) return 0;
  std::sort(order.begin(), order.end(), [&](int a, int b) { return part.strides[a] < part.strides[b]; });
  std::int64_t expected = 1;
  for (const int dim : order) {
    if (part.strides[dim] != expected) refuse("has strides that leave gaps or overlap");
    expected *= part.sizes[dim];
  }
  return bytes;
}

at::Tensor make_tensor(const TensorPart& part, bool pinned) {
  const auto options = at::TensorOptions(static_cast<c10::ScalarType>(part.dtype)).pinned_memory(pinned);
  const at::IntArrayRef sizes(part.sizes.data(), part.num_dims);
  if (!has_elements(part)) return at::empty(sizes, options);
  return at::empty_strided(sizes, at::IntArrayRef(part.strides.data(), part.num_dims), options);
}

void check_fixed_part(const FixedPart& fixed, int flow, const FlowLimits& limits) {
  if (fixed.magic != kPacketMagic) {
    refuse_header(fmt::format("it begins with {:#x} instead of {:#x}", fixed.magic, kPacketMagic));
  }
  if (fixed.version != kPacketVersion) {
    refuse_header(
        fmt::format("it is of version {}, not {}; use the same gpipe on all ranks", fixed.version, kPacketVersion));
  }
  if (fixed.flow != static_cast<std::uint32_t>(flow)) {
    refuse_header(fmt::format("it is of flow {}, not {}", fixed.flow, flow));
  }
  const auto most = static_cast<std::uint32_t>(limits.max_tensors);
  if (fixed.num_tensors > most || fixed.num_requires_grad > most || fixed.num_versions > most) {
    refuse_header(fmt::format("it announces {} tensors, more than {}",
                              std::max({fixed.num_tensors, fixed.num_requires_grad, fixed.num_versions}), most));
  }
}

}  // namespace

std::size_t header_bytes(const FlowLimits& limits) {
  return sizeof(FixedPart) + static_cast<std::size_t>(limits.max_tensors) * sizeof(TensorPart);
}

SentPacket describe(const Packet& packet, int flow, const FlowLimits& limits, HostCopies& copies) {
  const std::size_t num_parts = std::max({packet.tensors.size(), packet.requires_grad.size(), packet.versions.size()});
  if (num_parts > static_cast<std::size_t>(limits.max_tensors)) {
    throw InvalidArgument(
        fmt::format("a packet of {} tensors is more than this flow takes ({})", num_parts, limits.max_tensors));
  }
  FixedPart fixed;
  fixed.flow = static_cast<std::uint32_t>(flow);
  fixed.step = packet.step;
  fixed.micro_batch = packet.micro_batch;
  fixed.num_tensors = static_cast<std::uint32_t>(packet.tensors.size());
  fixed.num_requires_grad = static_cast<std::uint32_t>(packet.requires_grad.size());
  fixed.num_versions = static_cast<std::uint32_t>(packet.versions.size());
  std::vector<TensorPart> parts(num_parts);
  SentPacket sent;
  std::int64_t bytes = 0;
  for (std::size_t index = 0; index < num_parts; ++index) {
    TensorPart& part = parts[index];
    if (index < packet.requires_grad.size()) part.requires_grad = packet.requires_grad[index] ? 1 : 0;
    if (index < packet.versions.size()) part.version = packet.versions[index];
    if (index >= packet.tensors.size() || !packet.tensors[index].defined()) continue;
    check_sendable(packet.tensors[index], index);
    const auto [tensor, whole] = copies.of(packet.tensors[index], packet.ready);
    part.is_defined = 1;
    part.dtype = static_cast<std::int32_t>(tensor.scalar_type());
    part.num_dims = static_cast<std::uint16_t>(tensor.dim());
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), part.sizes.begin());
    std::copy(tensor.strides().begin(), tensor.strides().end(), part.strides.begin());
    bytes += static_cast<std::int64_t>(tensor.nbytes());
    if (tensor.nbytes() > 0) sent.payload.push_back(bytes_view(tensor));
    if (tensor.nbytes() > 0 && whole != nullptr) sent.whole.push_back(whole);
  }
  if (bytes > limits.max_bytes) {
    throw InvalidArgument(
        fmt::format("a packet of {} bytes is more than this flow takes ({})", bytes, limits.max_bytes));
  }
  if (packet.loss_has_weights) fixed.flags |= kLossHasWeights;
  sent.header.assign(header_bytes(limits), 0);
  std::memcpy(sent.header.data(), &fixed, sizeof fixed);
  if (!parts.empty()) std::memcpy(sent.header.data() + sizeof fixed, parts.data(), parts.size() * sizeof(TensorPart));
  return sent;
}

void add_checksum(SentPacket& packet) {
  FixedPart fixed;
  std::memcpy(&fixed, packet.header.data(), sizeof fixed);
  fixed.flags |= kHasChecksum;
  fixed.checksum = checksum_of(packet.payload);
  std::memcpy(packet.header.data(), &fixed, sizeof fixed);
}

ReceivedPacket read_header(const std::vector<char>& header, int flow, const FlowLimits& limits, bool pinned) {
  if (header.size() != header_bytes(limits)) refuse_header(fmt::format("it has {} bytes", header.size()));
  FixedPart fixed;
  std::memcpy(&fixed, header.data(), sizeof fixed);
  check_fixed_part(fixed, flow, limits);
  std::vector<TensorPart> parts(static_cast<std::size_t>(limits.max_tensors));
  std::memcpy(parts.data(), header.data() + sizeof fixed, parts.size() * sizeof(TensorPart));
  std::int64_t left = limits.max_bytes;
  for (std::size_t index = 0; index < fixed.num_tensors; ++index) {
    if (parts[index].is_defined != 0) left -= checked_bytes(parts[index], index, left);
  }
  ReceivedPacket received;
  if ((fixed.flags & kHasChecksum) != 0) received.checksum = fixed.checksum;
  received.packet.step = fixed.step;
  received.packet.micro_batch = fixed.micro_batch;
  received.packet.loss_has_weights = (fixed.flags & kLossHasWeights) != 0;
  for (std::size_t index = 0; index < fixed.num_tensors; ++index) {
    at::Tensor tensor;
    if (parts[index].is_defined != 0) tensor = make_tensor(parts[index], pinned);
    received.packet.tensors.push_back(tensor);
    if (tensor.defined() && tensor.nbytes() > 0) received.payload.push_back(bytes_view(tensor));
  }
  for (std::size_t index = 0; index < fixed.num_requires_grad; ++index) {
    received.packet.requires_grad.push_back(parts[index].requires_grad != 0);
  }
  for (std::size_t index = 0; index < fixed.num_versions; ++index)
    received.packet.versions.push_back(parts[index].version);
  return received;
}

std::uint64_t checksum_of(const Tensors& payload) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    throw HandshakeError("OpenSSL cannot make a SHA-256 sum here");
  }
  for (const at::Tensor& bytes : payload) EVP_DigestUpdate(context.get(), bytes.data_ptr(), bytes.nbytes());
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  EVP_DigestFinal_ex(context.get(), sum.data(), nullptr);
  std::uint64_t first = 0;
  std::memcpy(&first, sum.data(), sizeof first);
  return first;
}

}  // namespace gpipe::detail
