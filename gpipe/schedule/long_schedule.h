// Long schedule: a schedule of many micro-batches, written with few of them and with what repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::detail {

// Note [Long schedules]
// ~~~~~~~~~~~~~~~~~~~~~
// Between their start and their end, the workers of a schedule do the same again and again, a period of micro-batches
// later each time: 1F1B one B and one F, interleaved all of K micro-batches. So the schedule for 1,000,000
// micro-batches is that for a few dozen, `written`, with more rounds in it:
//
//   F0 F1 F2 F3 | B0 F4 | B1 F5 | B2 F6 | ... | B5 B6 B7 B8 B9       a worker of 1F1B
//                           one round, `num_added_rounds` more of it behind it
//
// Such a round is cut so that no worker waits for anything behind the cut, and so that as many messages wait at its end
// as at its beginning. GPipe and looped-bfs have none. Their workers go through the micro-batches in phases, doing the
// same for each of them, and a round is what a worker does for one:
//
//   F0 F1 | F2 | F3 ... | B0 B1 | B2 | B3 ...        a worker of GPipe: two phases, one round of each
//
// All of this is checked when a long schedule is made. If there are no rounds, or if they do not pay, the schedule is
// written out and nothing is added.
struct LongSchedule {
  // One action of `written`.
  struct Step {
    int worker = 0;
    int index = 0;  // in the worker's list
  };
  // order[begin, end), the actions of one round; those of phases are not together in the order, and both are 0.
  struct Round {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::vector<int> worker_begin;  // the same in the list of each worker
    std::vector<int> worker_end;
  };

  Schedule written;
  std::int64_t num_micro_batches = 0;  // of the schedule that is meant
  int period = 0;                      // micro-batches of a round
  std::int64_t num_added_rounds = 0;   // of each phase, or of the one round; 0 = everything is written out
  bool is_in_phases = false;           // a round for each phase, one after the other
  std::vector<Step> order;             // all actions that are written, in an order that the messages allow
  std::vector<Round> rounds;           // none if nothing is added
  std::vector<bool> is_recomputed;     // by stage, then by micro-batch that is written

  int num_stages() const { return written.num_stages; }
  int num_workers() const { return written.num_workers(); }
  const Action& action(const Step& step) const { return written.workers[step.worker][step.index]; }
};

// Throws as make_schedule does; the limit of actions is for those that are written.
LongSchedule make_long_schedule(std::string_view name, int num_workers, int num_micro_batches, int chunks = 0);

// One of any origin, written out. Throws ScheduleError if it cannot run.
LongSchedule written_out(Schedule schedule);

// As with_recompute does for schedules.
LongSchedule with_recompute(const LongSchedule& schedule, Recompute mode);
LongSchedule with_recompute(const LongSchedule& schedule, const std::vector<Recompute>& by_stage);

// Which micro-batches of each stage are recomputed, by stage: their forward keeps only the stage's input.
std::vector<bool> recomputed(const Schedule& schedule);

// What liveness.h says about schedules, of all of the micro-batches.
std::vector<std::vector<Live>> peak_live_by_stage(const LongSchedule& schedule);
std::vector<std::int64_t> peak_bytes_by_worker(const LongSchedule& schedule, const std::vector<StageBytes>& stages);
std::int64_t peak_bytes_of_worker(const LongSchedule& schedule, const std::vector<StageBytes>& stages, int worker);

// Of each stage, the share of its micro-batches that it recomputes.
std::vector<double> recompute_share(const LongSchedule& schedule);

}  // namespace gpipe::detail
