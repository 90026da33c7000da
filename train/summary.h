// What a training prints at its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::train {

struct StageSummary {
  std::string layers;  // "0-6"
  std::int64_t num_parameters = 0;
  double busy_fraction = 0;  // of the steps' time
  std::int64_t peak_bytes = 0;
};

struct TrainingSummary {
  std::string ended;  // "done", "interrupted", "stopped: the loss is nan at step 17"
  std::int64_t num_steps = 0;
  double seconds = 0;
  double num_items = 0;
  std::string unit = "samples";
  std::optional<double> loss;
  std::optional<double> bubble_fraction;
  std::vector<std::pair<std::string, std::string>> results;  // such as {"test accuracy", "89.1 %"}, in this order
  std::vector<std::pair<std::string, std::string>> files;    // such as {"weights", "model.pt"}: what was written
  std::vector<StageSummary> stages;
};

// Facts, one a line, then the table of the stages:
//
//   ended          done
//   steps          938 in 1:52, 8.37 a second
//   ...
//   stage  layers  parameters    busy     peak
//       0  0-6          12345  91.2 %  120 MiB
std::string to_text(const TrainingSummary& summary);

}  // namespace gpipe::train
