#include "train/capacity.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

namespace gpipe::train {
namespace {

constexpr int kOptimizerSlots = 1;
constexpr int kBytesPerParameter = 4 * (2 + kOptimizerSlots);

Schedule schedule_of(const CapacitySetting& setting) {
  return with_recompute(make_schedule(setting.schedule, setting.num_stages, setting.num_micro_batches),
                        setting.recompute);
}

int rows_of(const ModelFamily& family, const CapacitySetting& setting, int size) {
  return (family.batch_of(size) + setting.num_micro_batches - 1) / setting.num_micro_batches;
}

}  // namespace

CapacitySetting naive() { return {"naive-1", 1, 1, Recompute::kNever, "gpipe"}; }

CapacitySetting pipelined(int num_stages, int num_micro_batches, const std::string& schedule) {
  return {fmt::format("pipeline-{}", num_stages), num_stages, num_micro_batches, Recompute::kAlways, schedule};
}

void CapacitySearch::say(const CapacitySetting& setting, int size, const char* what) const {
  if (on_trial) on_trial(fmt::format("{} {}: {} = {}, {}", family_.name, setting.name, family_.unit, size, what));
}

Profile CapacitySearch::profile_of(int size, int rows) {
  const bool repeats = family_.repeated_layer > 0;
  const int profiled_size = repeats ? family_.least_size : size;
  const auto [entry, is_new] = profiles_.try_emplace({profiled_size, rows});
  if (is_new) {
    ProfileOptions options;
    options.repeats = 1;
    const Tensors targets = family_.targets(rows, device_);
    options.loss = [&](const Tensors& outputs) { return family_.loss(outputs.front(), targets.front()); };
    entry->second = profile(family_.chain(profiled_size), family_.inputs(rows, device_), options);
  }
  Profile result = entry->second;
  if (repeats) {
    const LayerProfile alike = result.layers[family_.repeated_layer];
    result.layers.insert(result.layers.begin() + family_.repeated_layer, size - profiled_size, alike);
  }
  return result;
}

std::int64_t CapacitySearch::least_bytes(const CapacitySetting& setting, int size) {
  PartitionOptions options;
  options.num_stages = setting.num_stages;
  options.live = peak_live_by_stage(schedule_of(setting));
  options.optimizer_slots = kOptimizerSlots;
  options.memory_limit_bytes = 0;
  try {
    partition(profile_of(size, rows_of(family_, setting, size)), options);
    return 0;
  } catch (const InfeasibleError& error) {  // the least that is missing of any partition
    return error.missing_bytes();
  }
}

bool CapacitySearch::is_too_large(int size) const {
  return size > family_.largest_size || family_.chain(size).size() > kMaxPartitionLayers;
}

// With a layer for each stage.
int CapacitySearch::least_size(const CapacitySetting& setting) const {
  int size = family_.least_size;
  while (family_.chain(size).size() < setting.num_stages) size += family_.size_step;
  return size;
}

int CapacitySearch::predict(const CapacitySetting& setting) {
  const int step = family_.size_step;
  const int least = least_size(setting);
  const auto fits = [&](int count) {
    const int size = least + count * step;
    if (is_too_large(size)) return false;
    say(setting, size, "predicting");
    return least_bytes(setting, size) <= memory_bytes_;
  };
  if (!fits(0)) return 0;
  int good = 0;
  int bad = 1;
  while (fits(bad)) {
    good = bad;
    bad *= 2;
  }
  while (bad - good > 1) {
    const int middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  if (is_too_large(least + bad * step)) {
    throw InvalidArgument(
        fmt::format("{} bytes hold more than the largest {} that is tried ({} {}, {} layers); give less --memory",
                    memory_bytes_, family_.name, family_.unit, family_.largest_size, kMaxPartitionLayers));
  }
  return least + good * step;
}

// The fastest that fits; if none does, one whose fullest stage is the least full.
Plan CapacitySearch::best_plan(const CapacitySetting& setting, int size) {
  PlanOptions options;
  options.num_stages = setting.num_stages;
  options.num_micro_batches = setting.num_micro_batches;
  options.schedule = setting.schedule;
  options.recompute = setting.recompute;
  options.optimizer_slots = kOptimizerSlots;
  options.memory_limit_bytes = std::max(memory_bytes_, least_bytes(setting, size));
  return partitioned_plan(profile_of(size, rows_of(family_, setting, size)), options);
}

bool CapacitySearch::trains(const CapacitySetting& setting, int size, std::vector<std::int64_t>* peak_bytes) {
  say(setting, size, "training");
  const LayerChain chain = family_.chain(size);
  const Tensors inputs = family_.inputs(family_.batch_of(size), device_);
  const Tensors targets = family_.targets(family_.batch_of(size), device_);
  const auto loss = [&](const Tensors& outputs, const Tensors& wanted) {
    return LossValue(family_.loss(outputs.front(), wanted.front()));
  };
  try {
    Pipeline pipeline(chain, PipelineOptions(best_plan(setting, size)).memory_limit_bytes(memory_bytes_));
    torch::optim::RMSprop optimizer(pipeline->parameters(), torch::optim::RMSpropOptions(1e-4));
    StepResult step;
    for (int count = 0; count < 2; ++count) {
      step = pipeline->train_step(inputs, targets, loss);
      optimizer.step();
      pipeline->book(optimizer);
    }
    if (peak_bytes != nullptr) {
      peak_bytes->clear();
      for (const StageMemory& stage : step.memory) peak_bytes->push_back(stage.peak_bytes);
    }
    return true;
  } catch (const OutOfMemoryError&) {
    return false;
  }
}

CapacityRow CapacitySearch::plan_row(const CapacitySetting& setting) {
  CapacityRow row;
  row.setting = setting;
  row.predicted_size = predict(setting);
  if (row.predicted_size == 0) return row;
  row.num_parameters = num_parameters(family_.chain(row.predicted_size));
  row.peak_bytes =
      peak_bytes_by_worker(schedule_of(setting), stage_bytes(best_plan(setting, row.predicted_size).costs));
  row.parameter_bytes = row.num_parameters * kBytesPerParameter;
  return row;
}

CapacityRow CapacitySearch::measure(const CapacitySetting& setting) {
  CapacityRow row = plan_row(setting);
  const int step = family_.size_step;
  const int least = least_size(setting);
  int size = std::max(row.predicted_size, least);
  std::vector<std::int64_t> peak_bytes;
  if (trains(setting, size, &peak_bytes)) {
    do {
      row.measured_size = size;
      row.peak_bytes = peak_bytes;
      size += step;
    } while (trains(setting, size, &peak_bytes));
  } else {
    for (size -= step; size >= least && row.measured_size == 0; size -= step) {
      if (trains(setting, size, &row.peak_bytes)) row.measured_size = size;
    }
  }
  row.num_parameters = row.measured_size > 0 ? num_parameters(family_.chain(row.measured_size)) : 0;
  if (row.measured_size == 0) row.peak_bytes.clear();
  row.parameter_bytes = row.num_parameters * kBytesPerParameter;
  return row;
}

}  // namespace gpipe::train
