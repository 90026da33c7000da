#include "gpipe/execute/runner/runner.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/values/checked_options.h"
#include "gpipe/os/blas.h"

namespace gpipe::detail {

void Runner::GiveBack::operator()(Assembly* assembly) const {
  pool->idle.emplace_back(assembly);
  assembly->end_step();
}

Runner::Runner(int num_workers, const PipelineOptions& options)
    : options_(options), workers_((prepare_blas(num_workers), num_workers)) {
  // The number of intra-op threads is fixed once per thread: kernels then reduce in the same order whatever the caller
  // does. at::get_num_threads forces libtorch's own lazy setting first.
  workers_.run(
      [&](int) {
        at::get_num_threads();
        omp_set_num_threads(options_.threads_per_stage());
      },
      [] {});
}

Schedule Runner::make_schedule(const StepKind& kind, const Cut& cut) const {
  if (kind.mode == StepMode::kForwardOnly) {
    return forwards_of(schedule_for(options_, cut, options_.num_micro_batches()), kind.num_micro_batches);
  }
  Schedule schedule = recomputed_schedule(kind, cut);
  if (kind.mode != StepMode::kUpdating) return without_updates(std::move(schedule));
  return schedule.has_updates() ? schedule : with_updates(std::move(schedule));
}

Schedule Runner::recomputed_schedule(const StepKind& kind, const Cut& cut) const {
  Schedule schedule = schedule_for(options_, cut, kind.num_micro_batches);
  if (!schedule.has_backward()) {
    throw InvalidArgument(fmt::format("{} has no backward; call forward without gradient instead", describe(schedule)));
  }
  if (kind.mode == StepMode::kApart) put_forwards_first(schedule);
  if (cut.order && kind.is_training) return schedule;
  if (!cut.recompute_by_stage.empty() && kind.is_training) {
    return with_recompute(std::move(schedule), cut.recompute_by_stage);
  }
  if (options_.custom_schedule() && options_.recompute() == Recompute::kNever && kind.is_training) return schedule;
  const bool has_a_mode = kind.is_training && options_.recompute() != Recompute::kAuto;
  return with_recompute(std::move(schedule), has_a_mode ? options_.recompute() : Recompute::kNever);
}

void Runner::prepare(const StepKind& kind, const Cut& cut) {
  Pool pool;
  pool.schedule = make_schedule(kind, cut);
  pools_.emplace(kind, std::move(pool));
}

Runner::Lease Runner::lease(const StepKind& kind, const Assembly::Parts& parts, const std::vector<int>& idle) {
  Pool& pool = pools_.at(kind);
  const auto found = std::find_if(pool.idle.rbegin(), pool.idle.rend(), [&](const auto& assembly) {
    return std::count(idle.begin(), idle.end(), assembly->number()) != 0;
  });
  std::unique_ptr<Assembly> assembly;
  if (found != pool.idle.rend()) {
    assembly = std::move(*found);
    pool.idle.erase(std::next(found).base());
  } else {
    if (pool.proven == nullptr) {
      pool.proven = prove(pool.schedule, parts.split.routes(parts.cut.skips_in(kind.is_training)));
    }
    assembly = std::make_unique<Assembly>(parts, pool.proven, num_assemblies_++);
  }
  return Lease(assembly.release(), GiveBack{&pool});
}

std::vector<int> Runner::idle() const {
  std::vector<int> numbers;
  for (const auto& [kind, pool] : pools_) {
    for (const auto& assembly : pool.idle) numbers.push_back(assembly->number());
  }
  return numbers;
}

}  // namespace gpipe::detail
