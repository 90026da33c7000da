// Capacity: how large a model fits accelerators of a given memory. Table 1 of the GPipe paper, measured and on paper.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::train {

// A family of models of one size parameter, and what they are trained on.
struct ModelFamily {
  std::string name;
  std::string unit;  // what the size counts: "L", "D"
  std::function<LayerChain(int size)> chain;
  int least_size = 1;
  int size_step = 1;
  int largest_size = 1 << 14;  // that is tried
  // If above 0, layers [repeated, repeated + size) are all alike: a profile of the least size does for every size.
  int repeated_layer = 0;
  int batch = 1;
  bool size_is_batch = false;  // then it is the size that is the batch
  int batch_of(int size) const { return size_is_batch ? size : batch; }
  std::function<Tensors(int rows, at::Device device)> inputs;
  std::function<Tensors(int rows, at::Device device)> targets;
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
};

// The paper's rows: naive is one accelerator, the whole batch at once, nothing recomputed; pipeline-K cuts and
// recomputes.
struct CapacitySetting {
  std::string name;  // "naive-1", "pipeline-8"
  int num_stages = 1;
  int num_micro_batches = 1;
  Recompute recompute = Recompute::kNever;
  std::string schedule = "gpipe";
};
CapacitySetting naive();
CapacitySetting pipelined(int num_stages, int num_micro_batches, const std::string& schedule);

struct CapacityRow {
  CapacitySetting setting;
  int predicted_size = 0;                // 0: not even the least fits
  int measured_size = 0;                 // 0 as well, or not measured
  std::int64_t num_parameters = 0;       // of the measured size, else of the predicted
  std::vector<std::int64_t> peak_bytes;  // by stage: measured, else predicted
  std::int64_t parameter_bytes = 0;      // with gradients and the optimizer's state
};

class CapacitySearch {
 public:
  // `device` is kCPU to measure, or kMeta for models that exist only on paper. The optimizer is RMSprop, one tensor of
  // state a parameter: 12 bytes a parameter, as in the paper.
  CapacitySearch(ModelFamily family, std::int64_t memory_bytes, at::Device device)
      : family_(std::move(family)), memory_bytes_(memory_bytes), device_(device) {}

  // Called with what is being tried, for progress.
  std::function<void(const std::string&)> on_trial;

  // The largest size that the plan says fits; 0 if none does.
  int predict(const CapacitySetting& setting);
  // The largest size that trains for real: two steps and the optimizer's, each stage within its memory. Sizes around
  // the prediction are tried, one by one, until the next larger one fails with OutOfMemoryError. REQUIRES: kCPU.
  CapacityRow measure(const CapacitySetting& setting);
  // The prediction alone, with its bytes.
  CapacityRow plan_row(const CapacitySetting& setting);

  // Whether a real training fits; fills the peaks.
  bool trains(const CapacitySetting& setting, int size, std::vector<std::int64_t>* peak_bytes = nullptr);

 private:
  Profile profile_of(int size, int rows);
  bool is_too_large(int size) const;
  int least_size(const CapacitySetting& setting) const;
  std::int64_t least_bytes(const CapacitySetting& setting, int size);
  Plan best_plan(const CapacitySetting& setting, int size);
  void say(const CapacitySetting& setting, int size, const char* what) const;

  ModelFamily family_;
  std::int64_t memory_bytes_;
  at::Device device_;
  std::map<std::pair<int, int>, Profile> profiles_;  // by size and rows
};

// Table 1 in miniature, and with the paper's own figures.
ModelFamily small_transformer();
ModelFamily small_amoebanet(int num_layers);
ModelFamily paper_transformer();
ModelFamily paper_amoebanet(int num_layers);

}  // namespace gpipe::train
