#include "gpipe/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace gpipe {
namespace {

// Note [The file]
// ~~~~~~~~~~~~~~~
//   8 bytes  length of the header, little-endian
//   header   JSON: {"__metadata__": {key: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//   data     the tensors' bytes, little-endian, one after the other; the offsets count from here, and leave no gaps
constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr TypeName kTypeNames[] = {
    {at::kDouble, "F64"}, {at::kFloat, "F32"}, {at::kHalf, "F16"}, {at::kBFloat16, "BF16"}, {at::kLong, "I64"},
    {at::kInt, "I32"},    {at::kShort, "I16"}, {at::kChar, "I8"},  {at::kByte, "U8"},       {at::kBool, "BOOL"}};

std::string error_text() { return std::strerror(errno); }

// A file descriptor that is closed at the end.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) {
      throw CheckpointError(fmt::format("{}: {}; check the path and its permissions", path, error_text()));
    }
  }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

void write_all(int fd, const char* bytes, std::size_t size, const std::string& path) {
  while (size > 0) {
    const ssize_t written = write(fd, bytes, std::min(size, std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw CheckpointError(fmt::format("{}: cannot be written: {}", path, error_text()));
    bytes += written;
    size -= static_cast<std::size_t>(written);
  }
}

void read_all(int fd, char* bytes, std::size_t size, const std::string& path) {
  while (size > 0) {
    const ssize_t got = read(fd, bytes, std::min(size, std::size_t{1} << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw CheckpointError(fmt::format("{}: cannot be read: {}", path, error_text()));
    if (got == 0)
      throw CheckpointError(fmt::format("{}: ends too early; it was cut short while it was read; try again", path));
    bytes += got;
    size -= static_cast<std::size_t>(got);
  }
}

void sync(int fd, const std::string& path) {
  if (fsync(fd) != 0) throw CheckpointError(fmt::format("{}: cannot be flushed to the disk: {}", path, error_text()));
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(at::ScalarType type, const std::string& tensor) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return entry.name;
  }
  throw InvalidArgument(
      fmt::format("\"{}\" is of type {}, which a safetensors file cannot hold", tensor, at::toString(type)));
}

std::string make_header(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadata || header.contains(name)) {
      throw InvalidArgument(fmt::format("\"{}\" cannot be a tensor's name: it is {}", name,
                                        name == kMetadata ? "reserved" : "given twice"));
    }
    const auto end = offset + static_cast<std::int64_t>(tensor.nbytes());
    header[name] = {{"dtype", name_of(tensor.scalar_type(), name)},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("names and metadata of a safetensors file must be UTF-8");
  }
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // so that the data is aligned
  return text;
}

struct Entry {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class HeaderReader {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  nlohmann::json parse(const std::string& text) const {
    // nlohmann keeps the last of equal keys: a file with two meanings.
    std::vector<std::set<std::string>> keys;
    const auto callback = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
      if (event == nlohmann::json::parse_event_t::object_start) keys.emplace_back();
      if (event == nlohmann::json::parse_event_t::object_end) keys.pop_back();
      if (event == nlohmann::json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
        fail(fmt::format("\"{}\" occurs twice", value.get<std::string>()));
      }
      return true;
    };
    try {
      nlohmann::json header = nlohmann::json::parse(text, callback);
      if (!header.is_object()) fail("its header is no JSON object");
      return header;
    } catch (const nlohmann::json::exception& error) {
      fail(fmt::format("its header is no JSON: {}", error.what()));
    }
  }

  Entry entry(const std::string& name, const nlohmann::json& value) const {
    if (!value.is_object() || value.size() != 3) fail(fmt::format("\"{}\" needs dtype, shape and data_offsets", name));
    Entry entry;
    entry.name = name;
    entry.type = type(name, value);
    entry.shape = integers(name, value, "shape");
    const std::vector<std::int64_t> offsets = integers(name, value, "data_offsets");
    if (offsets.size() != 2) fail(fmt::format("\"{}\": data_offsets must be two numbers", name));
    entry.begin = offsets[0];
    entry.end = offsets[1];
    const std::optional<std::int64_t> bytes = num_bytes(entry);
    if (!bytes || entry.begin > entry.end || entry.end - entry.begin != *bytes) {
      fail(fmt::format("\"{}\": {} bytes of data do not make the shape [{}] of {}", name, entry.end - entry.begin,
                       fmt::join(entry.shape, ", "), at::toString(entry.type)));
    }
    return entry;
  }

  std::map<std::string, std::string> metadata(const nlohmann::json& value) const {
    std::map<std::string, std::string> metadata;
    if (!value.is_object()) fail("its metadata is no JSON object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail(fmt::format("its metadata \"{}\" is no text", key));
      metadata[key] = text.get<std::string>();
    }
    return metadata;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{} is not a sound safetensors file: {}; write or fetch it again", path_, what));
  }

 private:
  at::ScalarType type(const std::string& name, const nlohmann::json& value) const {
    const auto found = value.find("dtype");
    if (found == value.end() || !found->is_string()) fail(fmt::format("\"{}\" has no dtype", name));
    for (const TypeName& known : kTypeNames) {
      if (known.name == found->get<std::string>()) return known.type;
    }
    fail(fmt::format("\"{}\" has the unknown dtype {}", name, found->dump()));
  }

  std::vector<std::int64_t> integers(const std::string& name, const nlohmann::json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end() || !found->is_array()) fail(fmt::format("\"{}\" has no {}", name, key));
    std::vector<std::int64_t> integers;
    for (const nlohmann::json& number : *found) {
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
        fail(fmt::format("\"{}\": {} holds {}", name, key, number.dump()));
      }
      integers.push_back(number.get<std::int64_t>());
    }
    return integers;
  }

  // Nothing if it cannot be counted.
  static std::optional<std::int64_t> num_bytes(const Entry& entry) {
    auto bytes = static_cast<std::int64_t>(c10::elementSize(entry.type));
    for (const std::int64_t size : entry.shape) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
    }
    return bytes;
  }

  const std::string& path_;
};

std::uint64_t header_length(const char (&bytes)[kLengthBytes]) {
  std::uint64_t length = 0;
  for (int index = kLengthBytes - 1; index >= 0; --index)
    length = length << 8 | static_cast<unsigned char>(bytes[index]);
  return length;
}

void check_no_gaps(std::vector<Entry> entries, std::int64_t data_bytes, const HeaderReader& reader) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
  });
  std::int64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != end) reader.fail(fmt::format("\"{}\" begins at {}, not at {}", entry.name, entry.begin, end));
    end = entry.end;
  }
  if (end != data_bytes) {
    reader.fail(fmt::format("it holds {} bytes of data, but its header speaks of {}; it was cut short or appended to",
                            data_bytes, end));
  }
}

}  // namespace

void save_safetensors(const std::string& path, const Safetensors& content) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : content.tensors) {
    if (!tensor.defined()) throw InvalidArgument(fmt::format("\"{}\" is an undefined tensor", name));
    tensors.emplace_back(name, tensor.detach().to(at::kCPU).contiguous());
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::string header = make_header(tensors, content.metadata);
  char length[kLengthBytes];
  for (int index = 0; index < kLengthBytes; ++index) length[index] = static_cast<char>(header.size() >> (8 * index));

  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  try {
    const Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(file.get(), length, sizeof length, path);
    write_all(file.get(), header.data(), header.size(), path);
    for (const auto& item : tensors) {
      write_all(file.get(), static_cast<const char*>(item.second.data_ptr()), item.second.nbytes(), path);
    }
    sync(file.get(), path);
    if (rename(temporary.c_str(), path.c_str()) != 0) {
      throw CheckpointError(fmt::format("{}: cannot be put in place: {}", path, error_text()));
    }
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
  const Descriptor directory(directory_of(path), O_RDONLY | O_DIRECTORY);
  sync(directory.get(), path);
}

Safetensors load_safetensors(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  const HeaderReader reader(path);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) throw CheckpointError(fmt::format("{}: {}", path, error_text()));
  if (!S_ISREG(status.st_mode)) throw CheckpointError(fmt::format("{}: is not a file; name a safetensors file", path));
  if (status.st_size < kLengthBytes) reader.fail(fmt::format("it has {} bytes", status.st_size));
  char length_bytes[kLengthBytes];
  read_all(file.get(), length_bytes, sizeof length_bytes, path);
  const std::uint64_t length = header_length(length_bytes);
  if (length > static_cast<std::uint64_t>(std::min<std::int64_t>(kMaxHeaderBytes, status.st_size - kLengthBytes))) {
    reader.fail(fmt::format("its header would have {} bytes", length));
  }
  std::string text(length, '\0');
  read_all(file.get(), text.data(), text.size(), path);

  Safetensors content;
  std::vector<Entry> entries;
  const nlohmann::json header = reader.parse(text);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      content.metadata = reader.metadata(value);
    } else {
      entries.push_back(reader.entry(name, value));
    }
  }
  const std::int64_t data_start = kLengthBytes + static_cast<std::int64_t>(length);
  check_no_gaps(entries, status.st_size - data_start, reader);
  for (const Entry& entry : entries) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.type));
    if (lseek(file.get(), data_start + entry.begin, SEEK_SET) < 0)
      throw CheckpointError(fmt::format("{}: {}", path, error_text()));
    read_all(file.get(), static_cast<char*>(tensor.data_ptr()), tensor.nbytes(), path);
    content.tensors.emplace_back(entry.name, tensor);
  }
  return content;
}

}  // namespace gpipe
