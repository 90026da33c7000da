// Safetensors: named tensors in one file or several, the format that other frameworks read and write too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/hash/content_hash.h"
#include "gpipe/os/file_system.h"

namespace gpipe {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct Safetensors {
  NamedTensors tensors;  // on the CPU, in the order of their names
  std::map<std::string, std::string> metadata;
};

// The metadata's entry with the hash of all that stands behind the header: see ContentHash. save_safetensors adds it;
// who loads the file compares it, and does not pass it on. Files of other programs have none.
constexpr const char* kDataHashKey = "gpipe.data_xxh3";

// The file appears whole or not at all: it is written under another name, flushed to the disk and renamed. An existing
// one is replaced if it is a plain file. Tensors are written from where they are; one that is not contiguous or not on
// the CPU is copied for as long as it is written. Throws CheckpointError; throws InvalidArgument for a name that is
// given twice or reserved, and for a tensor of a type that the format does not have.
void save_safetensors(const std::string& path, const Safetensors& content, FileSystem& files = real_file_system());

// Throws CheckpointError for whatever does not follow the format to the letter, and for data without the hash that the
// metadata says, before any tensor is made from it. The tensors are pages of the file that are read when they are used:
// see MappedFile. Changing them does not change the file.
Safetensors load_safetensors(const std::string& path);

// The same for the tensors that are `wanted`, into memory of their own. If there is a `hash`, it gets every byte of the
// file on the way; what it says is known only afterwards.
Safetensors read_safetensors(const std::string& path, const std::function<bool(const std::string& name)>& wanted,
                             ContentHash* hash);

// The same for a model in several files, model-00001-of-00003.safetensors and so on, with the index that names them, in
// an existing folder. A file holds tensors in the order of their names, up to `max_shard_bytes`, but at least one. The
// index is written last, so that a folder with an index is whole.
void save_safetensors_set(const std::string& folder, const Safetensors& content, std::int64_t max_shard_bytes,
                          FileSystem& files = real_file_system());
// Throws CheckpointError also for files that do not hold exactly what the index says. The metadata are those of all
// files.
Safetensors load_safetensors_set(const std::string& index_path);

// The names of the files that the index in the folder speaks of, sound or not; empty if there is no sound index.
std::vector<std::string> safetensors_set_files(const std::string& folder);

}  // namespace gpipe
