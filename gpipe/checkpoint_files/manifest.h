// The manifest of a checkpoint: what it is of, and which files it is made of. Plain values, no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/error.h"

namespace gpipe {

constexpr const char* kManifestName = "manifest.json";

// The index of a model in several safetensors files, as other programs call it.
constexpr const char* kIndexName = "model.safetensors.index.json";

// Of a file's hash.
constexpr std::size_t kHashDigits = 32;

struct ManifestFile {
  std::string name;  // in the checkpoint's folder
  std::int64_t bytes = 0;
  std::string hash;  // XXH3 of 128 bits, in hexadecimal digits; see ContentHash
};

// A parameter group of an optimizer, with its options as libtorch calls them. What is on or off is 1 or 0.
struct OptimizerGroup {
  std::map<std::string, double> options;
  std::vector<std::string> parameters;  // by name, in the group's order
};

// How the training ran that was saved. For people: nothing of it has to be the same when it is resumed.
struct TrainingLayout {
  int num_replicas = 1;
  int num_workers = 1;  // of each
  int num_micro_batches = 1;
  std::string schedule;  // by name, or "custom"
  int chunks_per_worker = 0;
  std::vector<int> layers_per_stage;
  std::vector<std::string> recompute;  // of each stage, or one for all
  std::vector<std::string> rematerialization;
};

struct Manifest {
  std::int64_t step = 0;           // optimizer steps that were taken
  std::int64_t pipeline_step = 0;  // Pipeline::step, which random streams are a function of
  std::uint64_t seed = 0;
  std::string data_position;  // these two in the form of who saved
  std::string learning_rate;
  std::map<std::string, std::string> notes;
  TrainingLayout layout;
  std::string gpipe_version;
  std::string libtorch_version;
  std::string optimizer;  // "Adam"
  std::vector<OptimizerGroup> groups;
  std::vector<ManifestFile> files;
};

// Note [The manifest's checksum]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A damaged file is seen by its hash, which the manifest says; a damaged manifest by its own checksum, at its end:
//
//     ...
//     ],
//     "crc32": "1f2e3d4c"
//   }
//
// It is the CRC-32 of zlib over all bytes in front of the comma in the line before, as eight hexadecimal digits.

// Throws InvalidArgument for an option that is not finite, and for text that is not UTF-8.
std::string to_json(const Manifest& manifest);
// Throws CheckpointError for anything that to_json does not write; fields that it does not know are left alone.
Manifest parse_manifest(std::string_view json, const std::string& path);

// Of this library.
const char* library_version();

}  // namespace gpipe
