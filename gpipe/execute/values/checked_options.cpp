#include "gpipe/execute/values/checked_options.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/os/processors.h"
#include "gpipe/plan/checked_rematerialization.h"
#include "gpipe/plan/plan.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/registry.h"

namespace gpipe::detail {

namespace {

void check_search(const PipelineOptions& options) {
  if (!is_searched(options)) return;
  const auto refuse_if = [](bool is_given, const char* what) {
    if (!is_given) return;
    throw InvalidArgument(
        fmt::format("the schedule is searched, with the layers of each stage, and {} is given; leave one out", what));
  };
  if (!(options.search_seconds() > 0)) {
    throw InvalidArgument(fmt::format("search_seconds is {}; it must be above 0", options.search_seconds()));
  }
  refuse_if(!options.balance().empty(), "balance");
  refuse_if(options.chunks_per_worker() != 0, "chunks_per_worker");
  refuse_if(!options.recompute_by_stage().empty(), "recompute_by_stage");
  refuse_if(!options.rematerialization().empty(), "rematerialization");
}

}  // namespace

bool is_searched(const PipelineOptions& options) {
  return !options.custom_schedule() && options.schedule() == kSearchedSchedule;
}

PipelineOptions checked(PipelineOptions options) {
  const auto check = [](const char* what, int value) {
    if (value < 1) throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", what, value));
  };
  check("num_stages", options.num_stages());
  check("threads_per_stage", options.threads_per_stage());
  check_threads("threads_per_stage", options.threads_per_stage());
  if (options.custom_schedule()) {
    const int count = options.custom_schedule()->num_micro_batches;
    if (options.num_micro_batches() != 0 && options.num_micro_batches() != count) {
      throw InvalidArgument(fmt::format("num_micro_batches is {}, but the schedule is for {}; leave it out",
                                        options.num_micro_batches(), count));
    }
    options.num_micro_batches(count);
  }
  if (options.memory_limit_bytes() < 0) {
    throw InvalidArgument(
        fmt::format("memory_limit_bytes is {}; it must be 0 (no limit) or more", options.memory_limit_bytes()));
  }
  if (options.memory_limit_bytes() > 0) options.measure_memory(true);
  if (options.num_stages() > kMaxStages) {
    throw InvalidArgument(fmt::format("num_stages is {}; the limit is {}", options.num_stages(), kMaxStages));
  }
  if (options.num_micro_batches() == 0) options.num_micro_batches(4 * options.num_stages());
  check_search(options);
  check("num_micro_batches", options.num_micro_batches());
  return options;
}

Schedule schedule_for(const PipelineOptions& options, int num_micro_batches) {
  if (is_searched(options)) return schedules::one_f_one_b(options.num_stages(), num_micro_batches);
  if (!options.custom_schedule()) {
    std::vector<std::string> names = training_schedule_names();
    names.emplace_back(kSearchedSchedule);
    find_schedule(options.schedule(), names);
    return gpipe::make_schedule(options.schedule(), options.num_stages(), num_micro_batches,
                                options.chunks_per_worker());
  }
  const Schedule& schedule = *options.custom_schedule();
  if (schedule.num_workers() != options.num_stages()) {
    throw InvalidArgument(fmt::format("the schedule is for {} workers, but num_stages is {}", schedule.num_workers(),
                                      options.num_stages()));
  }
  return first_micro_batches(schedule, num_micro_batches);
}

void check_balance(const std::vector<int>& balance, int num_layers, int num_stages) {
  if (static_cast<int>(balance.size()) != num_stages) {
    throw InvalidArgument(fmt::format("balance has {} entries, but there are {} stages", balance.size(), num_stages));
  }
  for (const int layers : balance) {
    if (layers < 1) {
      throw InvalidArgument(fmt::format("balance gives a stage {} layers; each needs at least 1", layers));
    }
  }
  const std::int64_t sum = std::accumulate(balance.begin(), balance.end(), std::int64_t{0});
  if (sum != num_layers) {
    throw InvalidArgument(fmt::format("balance adds up to {} layers, but the model has {}", sum, num_layers));
  }
}

void check_plan(const PipelineOptions& options, int num_layers) {
  if (!options.has_balance_of_plan()) return;
  const std::vector<int>& balance = options.balance();
  const std::int64_t sum = std::accumulate(balance.begin(), balance.end(), std::int64_t{0});
  if (sum == num_layers) return;
  throw InvalidArgument(fmt::format(
      "the plan is of another model: it has {} layers, and this one has {}; make one from a profile of this "
      "model (gpipe profile, then gpipe plan)",
      sum, num_layers));
}

void check_recompute(const PipelineOptions& options, int num_stages) {
  const std::size_t count = options.recompute_by_stage().size();
  if (count != 0 && count != static_cast<std::size_t>(num_stages)) {
    throw InvalidArgument(fmt::format("recompute_by_stage has {} entries, but there are {} stages", count, num_stages));
  }
  if (options.recompute() != Recompute::kAuto) return;
  if (!options.balance().empty() || count != 0 || options.custom_schedule() || !options.rematerialization().empty()) {
    throw InvalidArgument(
        "recompute is kAuto, which chooses layers and recompute for each stage of a schedule by name; leave out "
        "balance, recompute_by_stage, rematerialization and custom_schedule, or say a mode");
  }
}

void check_rematerialization_by_stage(const std::vector<Rematerialization>& by_stage,
                                      const std::vector<int>& layers_per_stage, int num_stages) {
  if (by_stage.empty()) return;
  if (by_stage.size() != static_cast<std::size_t>(num_stages)) {
    throw InvalidArgument(
        fmt::format("rematerialization has {} entries, but there are {} stages", by_stage.size(), num_stages));
  }
  if (layers_per_stage.empty()) {
    throw InvalidArgument("rematerialization names layers of stages, which are not known yet; give balance, too");
  }
  for (int stage = 0; stage < num_stages; ++stage) {
    try {
      check_rematerialization(by_stage[stage], layers_per_stage[stage]);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("rematerialization of stage {}, which has {} layer{}: {}", stage,
                                        layers_per_stage[stage], layers_per_stage[stage] == 1 ? "" : "s",
                                        error.what()));
    }
  }
}

std::string describe(const Schedule& schedule) {
  return schedule.name.empty() ? "the custom schedule" : fmt::format("schedule \"{}\"", schedule.name);
}

std::optional<torch::Device> device_of_stage(const PipelineOptions& options, int stage) {
  if (options.devices().empty()) return std::nullopt;
  return options.devices()[static_cast<std::size_t>(stage) % options.devices().size()];
}

void check_device_is_there(torch::Device device) {
  if (device.is_cpu() || device.is_meta()) return;
  const std::string type = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  if (!c10::impl::hasDeviceGuardImpl(device.type())) {
    throw InvalidArgument(
        fmt::format("devices names {}, but this libtorch has no code for {} devices; name cpu or leave devices out, or "
                    "use a libtorch that was built for {}",
                    device.str(), type, type));
  }
  const int count = c10::impl::getDeviceGuardImpl(device.type())->deviceCount();
  if (count == 0) {
    throw InvalidArgument(fmt::format(
        "devices names {}, but this host has no {} device; name cpu, or leave devices out", device.str(), type));
  }
  if (device.index() < count) return;
  throw InvalidArgument(fmt::format("devices names {}, but this host has {} {} device{}, {}:0{}; name {}", device.str(),
                                    count, type, count == 1 ? "" : "s", type,
                                    count == 1 ? "" : fmt::format(" to {}:{}", type, count - 1),
                                    count == 1 ? "it" : "one of them"));
}

void check_canonical(const PipelineOptions& options, const Schedule& schedule, const Certificate& certificate) {
  if (certificate.canonical || options.allow_noncanonical()) return;
  throw InvalidArgument(
      fmt::format("{} does not accumulate gradients in the order of the micro-batches: {}; the last bits would not be "
                  "those of other schedules: put the backwards of each stage in ascending order, or accept that with "
                  "allow_noncanonical(true)",
                  describe(schedule), certificate.non_canonical_because));
}

Schedule forwards_of(const Schedule& schedule, int num_micro_batches) {
  Schedule forwards = schedule;
  forwards.num_micro_batches = num_micro_batches;
  for (auto& actions : forwards.workers) actions.clear();
  for (int micro_batch = 0; micro_batch < num_micro_batches; ++micro_batch) {
    for (int stage = 0; stage < schedule.num_stages; ++stage) {
      forwards.workers[schedule.worker_of_stage[stage]].push_back({ActionKind::kForward, stage, micro_batch});
    }
  }
  return forwards;
}

void put_forwards_first(Schedule& schedule) {
  for (auto& actions : schedule.workers) {
    std::stable_partition(actions.begin(), actions.end(),
                          [](const Action& action) { return action.kind == ActionKind::kForward; });
  }
}

}  // namespace gpipe::detail
