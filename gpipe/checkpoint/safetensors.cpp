#include "gpipe/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "gpipe/checkpoint/hashed_file.h"
#include "gpipe/checkpoint/written_file.h"
#include "gpipe/checkpoint_files/safetensors_format.h"
#include "gpipe/checkpoint_files/strict_json.h"
#include "gpipe/os/input_file.h"
#include "gpipe/os/output_file.h"
#include "gpipe/text/printable.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are written as they are in memory");

namespace gpipe {
namespace {

using detail::check_replaceable;
using detail::directory_of;
using detail::MappedFile;
using detail::OutputFile;
using detail::quoted_name;
using detail::replace_file;

using detail::SafetensorsEntry;
using detail::SafetensorsHeader;
using detail::SafetensorsIndex;
using detail::SafetensorsType;

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr TypeName kTypeNames[] = {
    {at::kDouble, "F64"},
    {at::kFloat, "F32"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kChar, "I8"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
    {at::kComplexFloat, "C64"},
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
    {at::kUInt16, "U16"},
    {at::kUInt32, "U32"},
    {at::kUInt64, "U64"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
#endif
};

const SafetensorsType* type_of(const std::string& name, const at::Tensor& tensor) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == tensor.scalar_type()) return detail::find_safetensors_type(entry.name);
  }
  throw InvalidArgument(fmt::format("\"{}\" is of type {}, which a safetensors file cannot hold", name,
                                    at::toString(tensor.scalar_type())));
}

std::optional<at::ScalarType> scalar_type(const SafetensorsType& type) {
  for (const TypeName& entry : kTypeNames) {
    if (std::strcmp(entry.name, type.name) == 0) return entry.type;
  }
  return std::nullopt;
}

// Hashes and writes a piece while it is in the cache.
void write_hashed(OutputFile& file, ContentHash* hash, const void* bytes, std::size_t size) {
  constexpr std::size_t kWritePiece = std::size_t{1} << 20;
  if (hash == nullptr) {
    file.write(bytes, size);
    return;
  }
  const auto* next = static_cast<const char*>(bytes);
  for (std::size_t done = 0; done < size; done += kWritePiece) {
    const std::size_t piece = std::min(kWritePiece, size - done);
    hash->add(next + done, piece);
    file.write(next + done, piece);
  }
}

std::vector<SafetensorsEntry> entries_of(const NamedTensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) throw InvalidArgument(fmt::format("\"{}\" is an undefined tensor", name));
    if (tensor.layout() != at::kStrided) {
      throw InvalidArgument(fmt::format("\"{}\" is sparse, which a safetensors file cannot hold", name));
    }
    entries.push_back({name, type_of(name, tensor), tensor.sizes().vec(), 0, 0});
  }
  return entries;
}

// The tensors of entries that are in order, one after the other, as they are written.
void for_each_written(const std::vector<SafetensorsEntry>& entries, const NamedTensors& tensors,
                      const std::function<void(const void* bytes, std::size_t size)>& visit) {
  std::map<std::string, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) by_name[name] = &tensor;
  for (const SafetensorsEntry& entry : entries) {
    const at::Tensor tensor = by_name.at(entry.name)->detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
    visit(tensor.data_ptr(), tensor.nbytes());
  }
}

std::int64_t write(FileSystem& files, const std::string& path, const Safetensors& content, ContentHash* hash) {
  std::vector<SafetensorsEntry> entries = entries_of(content.tensors);
  const std::string header = detail::make_safetensors_header(entries, content.metadata);
  OutputFile file(files, path);
  write_hashed(file, hash, header.data(), header.size());
  for_each_written(entries, content.tensors,
                   [&](const void* bytes, std::size_t size) { write_hashed(file, hash, bytes, size); });
  file.finish();
  return static_cast<std::int64_t>(header.size()) + (entries.empty() ? 0 : entries.back().end);
}

// Stands in the header, and so has to be known before the data are written.
std::string data_hash(const Safetensors& content) {
  std::vector<SafetensorsEntry> entries = entries_of(content.tensors);
  detail::make_safetensors_header(entries, content.metadata);  // puts them in order
  ContentHash hash;
  for_each_written(entries, content.tensors, [&](const void* bytes, std::size_t size) { hash.add(bytes, size); });
  return hash.finish();
}

// Of wider elements than its place allows: files of other programs may be so.
bool is_aligned(const void* data, int element_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(element_bytes) == 0;
}

// The header of a file whose tensors libtorch can hold.
SafetensorsHeader header_of(const MappedFile& file) {
  SafetensorsHeader header = detail::parse_safetensors(file.view(), file.path());
  for (const SafetensorsEntry& entry : header.entries) {
    if (scalar_type(*entry.type)) continue;
    throw CheckpointError(file.path(),
                          fmt::format(": {} is of type {}, which libtorch {} does not have; convert it, or "
                                      "use a newer libtorch",
                                      quoted_name(entry.name), entry.type->name, TORCH_VERSION));
  }
  return header;
}

at::Tensor tensor_in(const std::shared_ptr<MappedFile>& file, const SafetensorsHeader& header,
                     const SafetensorsEntry& entry) {
  const at::TensorOptions options(*scalar_type(*entry.type));
  if (entry.num_bytes() == 0) return at::empty(entry.shape, options);
  char* data = file->data() + header.data_start + entry.begin;
  if (is_aligned(data, entry.type->bytes)) {
    return at::from_blob(
        data, entry.shape, [file](void*) {}, options);
  }
  at::Tensor tensor = at::empty(entry.shape, options);
  std::memcpy(tensor.data_ptr(), data, static_cast<std::size_t>(entry.num_bytes()));
  return tensor;
}

}  // namespace

detail::WrittenFile detail::write_safetensors(FileSystem& files, const std::string& path, const Safetensors& content) {
  ContentHash hash;
  const std::int64_t bytes = write(files, path, content, &hash);
  return {bytes, hash.finish()};
}

void save_safetensors(const std::string& path, const Safetensors& content, FileSystem& files) {
  check_replaceable(path);
  Safetensors hashed = content;
  hashed.metadata[kDataHashKey] = data_hash(content);
  replace_file(files, path, [&](const std::string& temporary) { write(files, temporary, hashed, nullptr); });
}

Safetensors load_safetensors(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  SafetensorsHeader header = header_of(*file);
  const std::string problem = detail::take_data_hash(header, file->view()).problem;
  if (!problem.empty()) throw CheckpointError(path, fmt::format(" is damaged: {}; write or fetch it again", problem));
  Safetensors content;
  content.metadata = header.metadata;
  for (const SafetensorsEntry& entry : header.entries) {
    content.tensors.emplace_back(entry.name, tensor_in(file, header, entry));
  }
  return content;
}

Safetensors read_safetensors(const std::string& path, const std::function<bool(const std::string&)>& wanted,
                             ContentHash* hash) {
  const SafetensorsHeader header = header_of(MappedFile(path));
  detail::InputFile file(path);
  file.read_past(static_cast<std::size_t>(header.data_start), hash);
  std::vector<const SafetensorsEntry*> in_file;
  for (const SafetensorsEntry& entry : header.entries) in_file.push_back(&entry);
  std::sort(in_file.begin(), in_file.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });
  std::map<std::string, at::Tensor> tensors;
  for (const SafetensorsEntry* entry : in_file) {
    const auto bytes = static_cast<std::size_t>(entry->num_bytes());
    if (!wanted(entry->name)) {
      file.read_past(bytes, hash);
      continue;
    }
    const at::TensorOptions options(*scalar_type(*entry->type));
    at::Tensor& tensor = tensors[entry->name] = at::empty(entry->shape, options);
    file.read(tensor.data_ptr(), bytes, hash);
  }
  return {{tensors.begin(), tensors.end()}, header.metadata};
}

void save_safetensors_set(const std::string& folder, const Safetensors& content, std::int64_t max_shard_bytes,
                          FileSystem& files) {
  if (max_shard_bytes < 1) {
    throw InvalidArgument(fmt::format("max_shard_bytes is {}; it must be at least 1", max_shard_bytes));
  }
  Safetensors all = content;
  std::vector<SafetensorsEntry> entries = entries_of(all.tensors);
  detail::make_safetensors_header(entries, content.metadata);  // refuses bad names before anything is written
  std::sort(all.tensors.begin(), all.tensors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Safetensors> shards(1);
  std::int64_t shard_bytes = 0;
  SafetensorsIndex index;
  for (const auto& item : all.tensors) {
    const auto bytes = static_cast<std::int64_t>(item.second.nbytes());
    if (!shards.back().tensors.empty() && bytes > max_shard_bytes - shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().tensors.push_back(item);
    shard_bytes += bytes;
    index.total_bytes += bytes;
  }
  const int num_shards = static_cast<int>(shards.size());
  check_replaceable(folder + "/" + kIndexName);
  for (int shard = 0; shard < num_shards; ++shard) {
    check_replaceable(folder + "/" + detail::shard_name("model", shard, num_shards));
  }
  files.unlink(folder + "/" + kIndexName);  // that of a set whose files may be replaced now
  for (int shard = 0; shard < num_shards; ++shard) {
    const std::string name = detail::shard_name("model", shard, num_shards);
    for (const auto& item : shards[shard].tensors) index.file_of[item.first] = name;
    shards[shard].metadata = content.metadata;
    save_safetensors(folder + "/" + name, shards[shard], files);
  }
  replace_file(files, folder + "/" + kIndexName, to_json(index));
}

std::vector<std::string> safetensors_set_files(const std::string& folder) {
  std::set<std::string> files;
  try {
    const std::string path = folder + "/" + kIndexName;
    for (const auto& item : detail::parse_safetensors_index(detail::read_json_file(path), path).file_of)
      files.insert(item.second);
  } catch (const CheckpointError&) {  // NOLINT(bugprone-empty-catch) then nothing is known to be a part of a set
  }
  return {files.begin(), files.end()};
}

Safetensors load_safetensors_set(const std::string& index_path) {
  const SafetensorsIndex index = detail::parse_safetensors_index(detail::read_json_file(index_path), index_path);
  std::set<std::string> files;
  for (const auto& item : index.file_of) files.insert(item.second);
  Safetensors content;
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& file : files) {
    const Safetensors shard = load_safetensors(directory_of(index_path) + "/" + file);
    for (const auto& item : shard.tensors) {
      found.emplace_back(item.first, file);
      content.tensors.push_back(item);
    }
    content.metadata.insert(shard.metadata.begin(), shard.metadata.end());
  }
  detail::check_shards(index, index_path, found);
  std::sort(content.tensors.begin(), content.tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return content;
}

}  // namespace gpipe
