#include "gpipe/recording/recorded_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/os/input_file.h"

namespace gpipe::detail {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 30;

int copy_of(const RecordingHeader& header) { return header.world_size > 1 ? header.replica : header.process; }

Recording read_recording(const std::filesystem::path& path) {
  try {
    return parse_recording(read_text(path.string(), kMostBytes));
  } catch (const ParseError& error) {
    throw ParseError(fmt::format("{}: {}", path.string(), error.what()), error.line(), error.column());
  }
}

}  // namespace

std::int64_t RecordedPipeline::num_steps() const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Recording& rank : ranks) least = std::min(least, rank.num_steps);
  return least;
}

std::string RecordedPipeline::describe_layer(int layer) const {
  if (layer < 0 || layer >= num_layers()) return "the loss function";
  const auto index = static_cast<std::size_t>(layer);
  std::string type;  // only the rank that runs the layer knows it
  for (const Recording& rank : ranks) {
    if (type.empty() && index < rank.header.layers.size()) type = rank.header.layers[index].type;
  }
  return fmt::format("layer {} ({}{}{})", layer, header().layers[index].name, type.empty() ? "" : ", ", type);
}

int RecordedRun::num_pipelines() const {
  int most = 0;
  for (const RecordedPipeline& recorded : pipelines) most = std::max(most, recorded.pipeline + 1);
  return most;
}

const RecordedPipeline* RecordedRun::find(int pipeline, int copy) const {
  for (const RecordedPipeline& recorded : pipelines) {
    if (recorded.pipeline == pipeline && recorded.copy == copy) return &recorded;
  }
  return nullptr;
}

std::vector<const RecordedPipeline*> RecordedRun::copies(int pipeline) const {
  std::vector<const RecordedPipeline*> found;
  for (const RecordedPipeline& recorded : pipelines) {
    if (recorded.pipeline == pipeline) found.push_back(&recorded);
  }
  return found;
}

std::int64_t RecordedRun::num_steps() const {
  std::int64_t sum = 0;
  for (const RecordedPipeline& recorded : pipelines) sum += recorded.num_steps();
  return sum;
}

RecordedRun merge(std::vector<Recording> recordings) {
  std::map<std::pair<int, int>, RecordedPipeline> by_place;
  std::sort(recordings.begin(), recordings.end(),
            [](const Recording& a, const Recording& b) { return a.header.process < b.header.process; });
  for (Recording& recording : recordings) {
    const int copy = copy_of(recording.header);
    RecordedPipeline& recorded = by_place[{recording.header.pipeline, copy}];
    recorded.pipeline = recording.header.pipeline;
    recorded.copy = copy;
    recorded.ranks.push_back(std::move(recording));
  }
  RecordedRun run;
  for (auto& [place, recorded] : by_place) run.pipelines.push_back(std::move(recorded));
  return run;
}

RecordedRun read_recorded_run(const std::string& folder) {
  std::vector<Recording> recordings;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jsonl") recordings.push_back(read_recording(entry.path()));
  }
  return merge(std::move(recordings));
}

}  // namespace gpipe::detail
