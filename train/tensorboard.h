// Scalars in a TensorBoard event file, written without TensorFlow or protobuf.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace gpipe::train {

// CRC-32C as TensorFlow's records store it: rotated by 15 bits plus a constant, so that the checksum of data that holds
// checksums is no special one.
std::uint32_t masked_crc32c(std::string_view bytes);

// A record of a TFRecord file: length, its checksum, `data`, its checksum; all little-endian.
std::string tfrecord(std::string_view data);

// Event messages in protobuf's wire format: the one that begins a file, and one scalar.
std::string file_version_event(double wall_seconds);
std::string scalar_event(std::string_view tag, double value, std::int64_t step, double wall_seconds);

// Confined to the thread that made it. Times are seconds since 1970, passed in.
class TensorBoardWriter {
 public:
  // Makes `folder` if need be, and in it a new file events.out.tfevents.SECONDS.HOST.PID.N; files of other runs are
  // left alone. Throws Error if that cannot be done.
  TensorBoardWriter(const std::string& folder, double wall_seconds);

  // Slashes in `tag` group charts: "train/loss". The value is stored as a float; NaN and infinities are shown as such.
  // Throws Error if it cannot be written.
  void add_scalar(std::string_view tag, double value, std::int64_t step, double wall_seconds);

  // What was added is in the file when this returns; the destructor does the same. Throws Error.
  void flush();

  const std::string& path() const { return path_; }

 private:
  void write(const std::string& event);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace gpipe::train
