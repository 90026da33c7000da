#include "cli/verify_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "gpipe/schedule/registry.h"

namespace gpipe::cli {
namespace {

using detail::RecordedPipeline;
using detail::RecordedRun;
using detail::RecordingHeader;
using detail::VerifyRequest;

std::string stages_text(int count) { return fmt::format("{} stage{}", count, count == 1 ? "" : "s"); }

VerifyRequest request_for(const ProgramShape& shape, int num_steps) {
  VerifyRequest request;
  request.num_steps = num_steps;
  request.num_micro_batches = shape.num_micro_batches;
  return request;
}

ProgramSettings settings_for(const ProgramShape& shape, int num_steps, int num_stages, const std::string& schedule,
                             Recompute recompute) {
  ProgramSettings settings;
  settings.request = request_for(shape, num_steps);
  settings.request.num_stages = num_stages;
  settings.request.schedule = schedule;
  settings.request.recompute = recompute;
  settings.name = fmt::format("{}, {}, recompute {}", stages_text(num_stages), schedule, name(recompute));
  const std::int64_t needed = std::int64_t{num_stages} * find_schedule(schedule).default_chunks;
  if (needed > shape.num_layers) {
    settings.not_possible = fmt::format("it needs {} layers, and the model has {}", needed, shape.num_layers);
  }
  return settings;
}

}  // namespace

ProgramSettings as_written(int num_steps) {
  ProgramSettings settings;
  settings.name = "as it is";
  settings.request.num_steps = num_steps;
  return settings;
}

ProgramShape shape_of(const RecordedRun& run) {
  ProgramShape shape;
  shape.num_layers = std::numeric_limits<int>::max();
  shape.num_micro_batches.resize(static_cast<std::size_t>(run.num_pipelines()), 1);
  for (const RecordedPipeline& pipeline : run.pipelines) {
    const RecordingHeader& header = pipeline.header();
    shape.num_layers = std::min(shape.num_layers, pipeline.num_layers());
    shape.num_micro_batches[static_cast<std::size_t>(pipeline.pipeline)] = header.num_micro_batches;
    if (header.world_size > 1) shape.own_stages = header.world_size / header.num_replicas;
  }
  const RecordingHeader& first = run.pipelines.front().header();
  shape.description =
      fmt::format("{}, {}, recompute {}", stages_text(first.num_stages), first.schedule, first.recompute);
  return shape;
}

ProgramSettings reference_settings(const ProgramShape& shape, int num_steps) {
  if (shape.own_stages > 0) {
    ProgramSettings settings;
    settings.request = request_for(shape, num_steps);
    settings.name = "as it is (" + shape.description + ")";
    return settings;
  }
  return settings_for(shape, num_steps, 1, "1f1b", Recompute::kNever);
}

std::vector<ProgramSettings> list_runs(const VerifiedWays& ways, const ProgramShape& shape, int num_steps) {
  std::vector<ProgramSettings> runs;
  const bool has_own_world = shape.own_stages > 0;
  const std::vector<int> stages = has_own_world ? std::vector<int>{shape.own_stages} : ways.stages;
  for (const int num_stages : stages) {
    for (const std::string& schedule : ways.schedules) {
      for (const Recompute recompute : ways.recompute) {
        runs.push_back(settings_for(shape, num_steps, num_stages, schedule, recompute));
      }
    }
  }
  if (has_own_world) return runs;
  for (const int num_processes : ways.processes) {
    for (const std::string& schedule : ways.schedules) {
      runs.push_back(settings_for(shape, num_steps, num_processes, schedule, ways.recompute.front()));
      runs.back().num_processes = num_processes;
      runs.back().name += fmt::format(", {} processes", num_processes);
    }
  }
  return runs;
}

std::vector<ReplicaRuns> list_replica_runs(const VerifiedWays& ways, const ProgramShape& shape, int num_steps) {
  std::vector<ReplicaRuns> all;
  if (shape.own_stages > 0) return all;
  for (const int num_replicas : ways.replicas) {
    const auto with_stages = [&](int num_stages) {
      const std::string& schedule = ways.schedules.front();
      ProgramSettings settings = settings_for(shape, num_steps, num_stages, schedule, ways.recompute.front());
      settings.num_replicas = num_replicas;
      settings.num_processes = num_replicas * num_stages;
      settings.name = fmt::format("{} replicas of {}", num_replicas, settings.name);
      return settings;
    };
    ReplicaRuns runs{num_replicas, with_stages(1), with_stages(2), reference_settings(shape, num_steps)};
    for (int& count : runs.alone.request.num_micro_batches) count *= num_replicas;
    runs.alone.name += fmt::format(", {} times the micro-batches", num_replicas);
    all.push_back(std::move(runs));
  }
  return all;
}

}  // namespace gpipe::cli
