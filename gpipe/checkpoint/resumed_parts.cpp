#include "gpipe/checkpoint/resumed_parts.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <typeinfo>

#include "gpipe/checkpoint/weights.h"
#include "gpipe/error.h"
#include "gpipe/text/json.h"

namespace gpipe {
namespace {

using detail::find_json_document;

// Opens what schedulers keep for classes that are derived from theirs.
struct OpenScheduler : torch::optim::LRScheduler {
  static auto& num_steps(torch::optim::LRScheduler& scheduler) { return scheduler.*(&OpenScheduler::step_count_); }
  static auto num_steps(const torch::optim::LRScheduler& scheduler) { return scheduler.*(&OpenScheduler::step_count_); }
  static std::vector<double> rates(const torch::optim::LRScheduler& scheduler) {
    return (scheduler.*(&OpenScheduler::get_current_lrs))();
  }
};

std::string scheduler_type(const torch::optim::LRScheduler& scheduler) {
  return c10::demangle(typeid(scheduler).name());
}

// Besides what the sampler keeps.
constexpr const char* kGenerator = "generator";

std::string prefix_of(const std::string& name) { return fmt::format("{}sampler.{}.", kAddedPrefix, name); }

bool begins_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

torch::serialize::InputArchive read_back(torch::serialize::OutputArchive& written) {
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  return archive;
}

}  // namespace

void save_scheduler(TrainingState& state, const torch::optim::LRScheduler& scheduler) {
  state.learning_rate =
      nlohmann::json{{"scheduler", scheduler_type(scheduler)}, {"steps", OpenScheduler::num_steps(scheduler)}}.dump();
}

void load_scheduler(TrainingState& state, torch::optim::LRScheduler& scheduler) {
  const nlohmann::json saved = find_json_document(state.learning_rate).value_or(nullptr);
  const auto number = [&]() -> const nlohmann::json* {
    if (!saved.is_object() || !saved.contains("scheduler") || !saved.contains("steps")) return nullptr;
    const nlohmann::json& steps = saved["steps"];
    const bool fits = steps.is_number_unsigned() && steps <= std::numeric_limits<unsigned>::max();
    return fits && saved["scheduler"].is_string() ? &steps : nullptr;
  }();
  if (number == nullptr) {
    throw InvalidArgument(fmt::format(
        "the checkpoint holds no learning rate scheduler, but {}; put one in with save_scheduler before it is saved",
        state.learning_rate.empty() ? "nothing" : "\"" + state.learning_rate + "\""));
  }
  if (saved["scheduler"] != scheduler_type(scheduler)) {
    throw InvalidArgument(
        fmt::format("the checkpoint holds the state of a {}, but this is a {}; make the same scheduler",
                    saved["scheduler"].get<std::string>(), scheduler_type(scheduler)));
  }
  OpenScheduler::num_steps(scheduler) = number->get<unsigned>();
  const std::vector<double> rates = OpenScheduler::rates(scheduler);
  if (rates == state.learning_rates) return;
  state.warnings.push_back(
      fmt::format("the learning rate is {}, but was {} when the checkpoint was saved: the training departs from one "
                  "without a break; call load_checkpoint before load_scheduler, and set no other rate",
                  fmt::join(rates, ", "), fmt::join(state.learning_rates, ", ")));
}

namespace detail {

void check_num_replicas(std::size_t num_replicas) {
  if (num_replicas <= 1) return;
  throw InvalidArgument(fmt::format(
      "a sampler that has one of {} replicas' samples cannot be saved: a checkpoint has one place in the data; let all "
      "replicas draw the same batches, and take replica_share of each",
      num_replicas));
}

// As tensors of their own, so that a checkpoint is safetensors all through.
void add_sampler(TrainingState& state, const std::string& name, torch::serialize::OutputArchive& written) {
  torch::serialize::InputArchive archive = read_back(written);
  const std::string prefix = prefix_of(name);
  NamedTensors added;
  for (const std::string& key : archive.keys()) {
    at::Tensor tensor;
    if (!archive.try_read(key, tensor, /*is_buffer=*/true)) {
      throw InvalidArgument(
          fmt::format("the sampler \"{}\" keeps \"{}\", which is no tensor and cannot be saved", name, key));
    }
    added.emplace_back(prefix + key, tensor.detach().clone());
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    added.emplace_back(prefix + kGenerator, generator.get_state());
  }
  const auto is_old = [&](const auto& item) { return begins_with(item.first, prefix); };
  state.added.erase(std::remove_if(state.added.begin(), state.added.end(), is_old), state.added.end());
  state.added.insert(state.added.end(), added.begin(), added.end());
}

void restore_sampler(const TrainingState& state, const std::string& name,
                     const std::function<void(torch::serialize::InputArchive&)>& load) {
  const std::string prefix = prefix_of(name);
  torch::serialize::OutputArchive kept;
  at::Tensor generator_state;
  for (const auto& [key, tensor] : state.added) {
    if (!begins_with(key, prefix)) continue;
    if (key == prefix + kGenerator) {
      generator_state = tensor;
    } else {
      kept.write(key.substr(prefix.size()), tensor, /*is_buffer=*/true);
    }
  }
  if (!generator_state.defined()) {
    throw InvalidArgument(
        fmt::format("the checkpoint holds no sampler \"{}\"; put it in with save_sampler before it is saved", name));
  }
  try {
    torch::serialize::InputArchive archive = read_back(kept);
    load(archive);
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(generator_state);
  } catch (const c10::Error& error) {
    throw InvalidArgument(
        fmt::format("the sampler \"{}\" of the checkpoint is of another kind: {}; make the same sampler", name,
                    error.what_without_backtrace()));
  }
}

}  // namespace detail
}  // namespace gpipe
