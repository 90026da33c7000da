// RecordedRun: what a program's pipelines did in one run, from all of its processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/recording/recording.h"

namespace gpipe::detail {

// The recordings of one pipeline that belong together: those of its ranks. Replicas, and processes that each run the
// whole pipeline by themselves, are copies that should do the same.
struct RecordedPipeline {
  int pipeline = 0;
  int copy = 0;
  std::vector<Recording> ranks;

  const RecordingHeader& header() const { return ranks.front().header; }
  int num_layers() const { return static_cast<int>(header().layers.size()); }
  // Those that all ranks have taken.
  std::int64_t num_steps() const;
  // "layer 3 (head, Linear)", "the loss function".
  std::string describe_layer(int layer) const;
};

struct RecordedRun {
  std::vector<RecordedPipeline> pipelines;  // by pipeline, then by copy

  int num_pipelines() const;
  // Null if there is none.
  const RecordedPipeline* find(int pipeline, int copy) const;
  std::vector<const RecordedPipeline*> copies(int pipeline) const;
  // 0 if there are none.
  std::int64_t num_steps() const;
};

RecordedRun merge(std::vector<Recording> recordings);

// Reads the files of a folder that have the names of recordings. Throws ParseError, with the file's name, or
// CheckpointError for one that cannot be read.
RecordedRun read_recorded_run(const std::string& folder);

}  // namespace gpipe::detail
