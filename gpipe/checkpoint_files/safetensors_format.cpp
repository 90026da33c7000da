#include "gpipe/checkpoint_files/safetensors_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "gpipe/checkpoint_files/strict_json.h"
#include "gpipe/os/output_file.h"
#include "gpipe/text/json.h"
#include "gpipe/text/json_record.h"
#include "gpipe/text/printable.h"

namespace gpipe::detail {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxDimensions = 64;
constexpr std::size_t kMaxShown = 100;
constexpr const char* kMetadata = "__metadata__";

constexpr SafetensorsType kTypes[] = {{"F64", 8},     {"F32", 4},     {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4},
                                      {"I16", 2},     {"I8", 1},      {"U64", 8}, {"U32", 4},  {"U16", 2}, {"U8", 1},
                                      {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"C64", 8}, {"BOOL", 1}};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw CheckpointError(path, fmt::format(" is not a sound safetensors file: {}; write or fetch it again", what));
}

// Nothing if it cannot be counted. A size of zero does not excuse the others: strides are made of them.
std::optional<std::int64_t> num_bytes(const SafetensorsEntry& entry) {
  std::int64_t bytes = entry.type->bytes;
  bool is_empty = false;
  for (const std::int64_t size : entry.shape) {
    is_empty = is_empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return is_empty ? 0 : bytes;
}

// Follows the JSON text event by event: what has no place in a header ends it there, before it takes memory.
class HeaderReader : public JsonReceiver {
 public:
  HeaderReader(const std::string& path, SafetensorsHeader& header) : path_(path), header_(header) {}

  void begin_object(std::size_t /*offset*/) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && key_ == kMetadata) {
      if (std::exchange(has_metadata_, true)) fail(path_, "\"__metadata__\" occurs twice");
      place_ = Place::kInMetadata;
    } else if (place_ == Place::kTop) {
      header_.entries.emplace_back();
      header_.entries.back().name = std::move(key_);
      has_shape_ = has_offsets_ = false;
      place_ = Place::kEntry;
    } else {
      misplaced("an object");
    }
    key_.clear();
  }

  void end_object(std::size_t /*offset*/) override {
    if (place_ == Place::kEntry) finish_entry();
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
  }

  void begin_list(std::size_t /*offset*/) override {
    if (place_ != Place::kEntry) misplaced("a list");
    if (key_ == "shape" && !std::exchange(has_shape_, true)) {
      place_ = Place::kShape;
    } else if (key_ == "data_offsets" && !std::exchange(has_offsets_, true)) {
      place_ = Place::kOffsets;
      num_offsets_ = 0;
    } else {
      misplaced("a list");
    }
  }

  void end_list(std::size_t /*offset*/) override {
    if (place_ == Place::kOffsets && num_offsets_ != 2) {
      fail(path_, fmt::format("{}: data_offsets must be two numbers", entry_name()));
    }
    place_ = Place::kEntry;
  }

  void name(std::string name, std::size_t /*offset*/) override {
    key_ = std::move(name);
    if (place_ == Place::kInMetadata && header_.metadata.count(key_) != 0) {
      fail(path_, fmt::format("its metadata {} occurs twice", quoted_name(key_)));
    }
  }

  void value(JsonScalar value, std::size_t /*offset*/, std::string_view fraction) override {
    if (auto* const text = std::get_if<std::string>(&value)) return take_text(std::move(*text));
    if (const auto* const number = std::get_if<std::uint64_t>(&value)) return take_number(*number);
    misplaced(fraction.empty() ? json_shown(value) : std::string(fraction.substr(0, kMaxShown)));
  }

 private:
  void take_text(std::string text) {
    if (place_ == Place::kInMetadata) {
      header_.metadata[std::move(key_)] = std::move(text);
    } else if (place_ == Place::kEntry && key_ == "dtype") {
      SafetensorsEntry& entry = header_.entries.back();
      if (entry.type != nullptr) fail(path_, fmt::format("{}: dtype occurs twice", entry_name()));
      entry.type = find_safetensors_type(text);
      if (entry.type == nullptr) {
        fail(path_, fmt::format("{} has the unknown dtype {}", entry_name(), quoted_name(text)));
      }
    } else {
      misplaced(quoted_name(text));
    }
  }

  void take_number(std::uint64_t value) {
    if (place_ != Place::kShape && place_ != Place::kOffsets) misplaced(std::to_string(value));
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) misplaced(std::to_string(value));
    SafetensorsEntry& entry = header_.entries.back();
    const auto number = static_cast<std::int64_t>(value);
    if (place_ == Place::kShape) {
      if (entry.shape.size() == kMaxDimensions) {
        fail(path_, fmt::format("{} has more than {} dimensions", entry_name(), kMaxDimensions));
      }
      entry.shape.push_back(number);
      return;
    }
    if (num_offsets_ == 0) entry.begin = number;
    if (num_offsets_ == 1) entry.end = number;
    ++num_offsets_;
  }

  enum class Place { kStart, kTop, kInMetadata, kEntry, kShape, kOffsets, kEnd };

  std::string entry_name() const { return quoted_name(header_.entries.back().name); }

  [[noreturn]] void misplaced(const std::string& what) const {
    switch (place_) {
      case Place::kStart:
      case Place::kEnd:
        fail(path_, "its header is no JSON object");
      case Place::kTop:
        if (key_ == kMetadata) fail(path_, fmt::format("its metadata is {}, no JSON object", what));
        fail(path_, fmt::format("{} needs dtype, shape and data_offsets, but is {}", quoted_name(key_), what));
      case Place::kInMetadata:
        fail(path_, fmt::format("its metadata {} is {}, which is no text", quoted_name(key_), what));
      case Place::kEntry:
        fail(path_, fmt::format("{}: {} is {}; it needs dtype, shape and data_offsets, each once", entry_name(),
                                quoted_name(key_), what));
      case Place::kShape:
        fail(path_, fmt::format("{}: shape holds {}", entry_name(), what));
      case Place::kOffsets:
        fail(path_, fmt::format("{}: data_offsets holds {}", entry_name(), what));
    }
    fail(path_, "its header is no JSON object");
  }

  void finish_entry() const {
    const SafetensorsEntry& entry = header_.entries.back();
    const char* missing = entry.type == nullptr ? "dtype" : !has_shape_ ? "shape" : !has_offsets_ ? "data_offsets" : "";
    if (*missing != '\0') {
      fail(path_, fmt::format("{} needs dtype, shape and data_offsets, but has no {}", entry_name(), missing));
    }
    const std::optional<std::int64_t> bytes = detail::num_bytes(entry);
    if (!bytes || entry.begin > entry.end || entry.end - entry.begin != *bytes) {
      fail(path_, fmt::format("{}: {} bytes of data do not make the shape [{}] of {}", entry_name(),
                              entry.end - entry.begin, fmt::join(entry.shape, ", "), entry.type->name));
    }
  }

  const std::string& path_;
  SafetensorsHeader& header_;
  Place place_ = Place::kStart;
  std::string key_;  // that the next value belongs to
  bool has_metadata_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  int num_offsets_ = 0;
};

void check_no_gaps(const SafetensorsHeader& header, std::int64_t data_bytes, const std::string& path) {
  std::vector<const SafetensorsEntry*> entries;
  entries.reserve(header.entries.size());
  for (const SafetensorsEntry& entry : header.entries) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return std::make_pair(a->begin, a->end) < std::make_pair(b->begin, b->end);
  });
  std::int64_t end = 0;
  for (const SafetensorsEntry* entry : entries) {
    if (entry->begin != end) {
      fail(path, fmt::format("{} begins at {}, not at {}", quoted_name(entry->name), entry->begin, end));
    }
    end = entry->end;
  }
  if (end != data_bytes) {
    fail(path, fmt::format("it holds {} bytes of data, but its header speaks of {}; it was cut short or appended to",
                           data_bytes, end));
  }
}

void sort_by_name(SafetensorsHeader& header, const std::string& path) {
  std::vector<SafetensorsEntry>& entries = header.entries;
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != entries.end()) fail(path, fmt::format("{} occurs twice", quoted_name(twice->name)));
}

// Of entries that are in order.
std::string header_json(const std::vector<SafetensorsEntry>& entries,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name == kMetadata || header.contains(entry.name)) {
      throw InvalidArgument(fmt::format("{} cannot be a tensor's name: it is {}", quoted_name(entry.name),
                                        entry.name == kMetadata ? "reserved" : "given twice"));
    }
    header[entry.name] = {
        {"dtype", entry.type->name}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  try {
    return header.dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("names and metadata of a safetensors file must be UTF-8");
  }
}

}  // namespace

const SafetensorsType* find_safetensors_type(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const SafetensorsType& type) { return type.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path) {
  if (file.size() < kLengthBytes) fail(path, fmt::format("it has {} bytes", file.size()));
  std::uint64_t length = 0;
  for (std::size_t index = kLengthBytes; index-- > 0;) length = length << 8 | static_cast<unsigned char>(file[index]);
  if (length > std::min(kMaxHeaderBytes, file.size() - kLengthBytes)) {
    fail(path, fmt::format("its header would have {} bytes", length));
  }
  std::string_view text = file.substr(kLengthBytes, length);
  if (text.empty() || text.front() != '{') fail(path, "its header does not begin with a brace: it is no JSON object");
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  if (text.back() != '}') fail(path, "its header is no JSON object with only spaces behind it");

  SafetensorsHeader header;
  header.data_start = static_cast<std::int64_t>(kLengthBytes + length);
  HeaderReader reader(path, header);
  try {
    read_json(text, reader);
  } catch (const JsonProblem& problem) {
    if (problem.kind == JsonProblem::kNotUtf8) {
      fail(path, fmt::format("its header is not UTF-8 at byte {}", problem.invalid_utf8));
    }
    fail(path, fmt::format("its header is no JSON from byte {} on", problem.byte));
  }
  sort_by_name(header, path);
  check_no_gaps(header, static_cast<std::int64_t>(file.size()) - header.data_start, path);
  return header;
}

std::string make_safetensors_header(std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::make_pair(-a.type->bytes, std::string_view(a.name)) <
           std::make_pair(-b.type->bytes, std::string_view(b.name));
  });
  std::int64_t offset = 0;
  for (SafetensorsEntry& entry : entries) {
    const std::optional<std::int64_t> bytes = num_bytes(entry);
    entry.begin = offset;
    if (!bytes || entry.shape.size() > kMaxDimensions || __builtin_add_overflow(offset, *bytes, &offset)) {
      throw InvalidArgument(fmt::format("{} is too large for a safetensors file", quoted_name(entry.name)));
    }
    entry.end = offset;
  }
  std::string text = header_json(entries, metadata);
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // so that the data is aligned
  if (text.size() > kMaxHeaderBytes) {
    throw InvalidArgument(
        fmt::format("a header of {} bytes is too long; write the tensors as several files", text.size()));
  }
  std::string header(kLengthBytes, '\0');
  for (std::size_t index = 0; index < kLengthBytes; ++index) {
    header[index] = static_cast<char>(text.size() >> (8 * index));
  }
  return header + text;
}

std::string shard_name(const std::string& stem, int shard, int num_shards) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, shard + 1, num_shards);
}

std::string to_json(const SafetensorsIndex& index) {
  const nlohmann::json json = {{"metadata", {{"total_size", index.total_bytes}}}, {"weight_map", index.file_of}};
  return json.dump(2) + "\n";
}

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& path) {
  const StrictJson json(text, path, "index of safetensors files");
  SafetensorsIndex index;
  const auto metadata = json.object().find("metadata");
  if (metadata != json.object().end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");  // other programs write it as they like
    if (total != metadata->end() && total->is_number_unsigned()) index.total_bytes = total->get<std::int64_t>();
  }
  for (const auto& [name, file] : json.map(json.object(), "weight_map").items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      json.fail(fmt::format("{} is in {}, which is no file of the same folder", quoted_name(name),
                            file.is_string() ? quoted_name(file.get_ref<const std::string&>()) : "no file"));
    }
    index.file_of[name] = file.get<std::string>();
  }
  return index;
}

void check_shards(const SafetensorsIndex& index, const std::string& index_path,
                  const std::vector<std::pair<std::string, std::string>>& found) {
  std::map<std::string, std::string> missing = index.file_of;
  for (const auto& [tensor, file] : found) {
    const auto said = missing.find(tensor);
    if (said == missing.end() || said->second != file) {
      throw CheckpointError(directory_of(index_path) + "/" + file,
                            fmt::format(" holds {}, which {} does not look for there; fetch all of them again",
                                        quoted_name(tensor), index_path));
    }
    missing.erase(said);
  }
  if (missing.empty()) return;
  throw CheckpointError(index_path, fmt::format(" says that {} is in {}, but it is not; fetch all of them again",
                                                quoted_name(missing.begin()->first), missing.begin()->second));
}

}  // namespace gpipe::detail
