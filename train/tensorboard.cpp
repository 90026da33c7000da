#include "train/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/files.h"
#include "gpipe/launch/world.h"

namespace gpipe::train {
namespace {

// Protobuf's wire format: a field is its number and the kind of its value, then the value.
enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <typename Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (std::size_t byte = 0; byte < sizeof value; ++byte) bytes += static_cast<char>(value >> (8 * byte) & 0xff);
  return bytes;
}

// Seven bits a byte, the lowest first; all bytes but the last have their highest bit set.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(std::uint32_t field, WireType type) { return varint(field << 3 | type); }

template <typename Bits, typename Number>
std::string fixed_field(std::uint32_t field, WireType type, Number value) {
  Bits bits = 0;
  static_assert(sizeof bits == sizeof value);
  std::memcpy(&bits, &value, sizeof bits);
  return key(field, type) + little_endian(bits);
}

std::string double_field(std::uint32_t field, double value) {
  return fixed_field<std::uint64_t>(field, kFixed64, value);
}

std::string float_field(std::uint32_t field, float value) { return fixed_field<std::uint32_t>(field, kFixed32, value); }

std::string integer_field(std::uint32_t field, std::int64_t value) {
  return key(field, kVarint) + varint(static_cast<std::uint64_t>(value));
}

std::string bytes_field(std::uint32_t field, std::string_view value) {
  return key(field, kBytes) + varint(value.size()) + std::string(value);
}

// The fields' numbers in TensorFlow's event.proto and summary.proto.
constexpr std::uint32_t kEventWallTime = 1;
constexpr std::uint32_t kEventStep = 2;
constexpr std::uint32_t kEventFileVersion = 3;
constexpr std::uint32_t kEventSummary = 5;
constexpr std::uint32_t kSummaryValue = 1;
constexpr std::uint32_t kValueTag = 1;
constexpr std::uint32_t kValueSimpleValue = 2;

// A file that is new, whatever other runs began in the same second.
std::FILE* create(const std::string& folder, double wall_seconds, std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) cli::throw_unwritable(folder, error.value());
  constexpr int kMostAttempts = 1000;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    path = fmt::format("{}/events.out.tfevents.{:010.0f}.{}.{}.{}", folder, wall_seconds, read_world().host, getpid(),
                       attempt);
    if (std::FILE* file = std::fopen(path.c_str(), "wbx"); file != nullptr) return file;
    if (errno != EEXIST) break;
  }
  cli::throw_unwritable(path, errno);
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  std::uint32_t remainder = 0xffffffff;
  for (const char byte : bytes) {
    remainder ^= static_cast<unsigned char>(byte);
    // Castagnoli's polynomial 0x1edc6f41, with its bits reversed.
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82f63b78 : 0);
  }
  const std::uint32_t crc = ~remainder;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

std::string tfrecord(std::string_view data) {
  const std::string length = little_endian(static_cast<std::uint64_t>(data.size()));
  return length + little_endian(masked_crc32c(length)) + std::string(data) + little_endian(masked_crc32c(data));
}

std::string file_version_event(double wall_seconds) {
  return double_field(kEventWallTime, wall_seconds) + bytes_field(kEventFileVersion, "brain.Event:2");
}

std::string scalar_event(std::string_view tag, double value, std::int64_t step, double wall_seconds) {
  const std::string entry = bytes_field(kValueTag, tag) + float_field(kValueSimpleValue, static_cast<float>(value));
  return double_field(kEventWallTime, wall_seconds) + integer_field(kEventStep, step) +
         bytes_field(kEventSummary, bytes_field(kSummaryValue, entry));
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, double wall_seconds)
    : file_(create(folder, wall_seconds, path_), std::fclose) {
  write(file_version_event(wall_seconds));
  flush();
}

void TensorBoardWriter::add_scalar(std::string_view tag, double value, std::int64_t step, double wall_seconds) {
  write(scalar_event(tag, value, step, wall_seconds));
}

void TensorBoardWriter::write(const std::string& event) {
  const std::string record = tfrecord(event);
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size()) {
    cli::throw_unwritable(path_, errno);
  }
}

void TensorBoardWriter::flush() {
  if (std::fflush(file_.get()) != 0) cli::throw_unwritable(path_, errno);
}

}  // namespace gpipe::train
