// Schedule: the ordered actions of each worker, and which worker each stage lives on. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/schedule/action.h"

namespace gpipe {

// Nothing here is checked until `validate` proves it: a Schedule may be edited, parsed or made up freely.
struct Schedule {
  std::string name;  // of the generator or the file; not part of the text forms, nor of equality
  int num_stages = 0;
  int num_micro_batches = 0;
  std::vector<int> worker_of_stage;          // size num_stages; -1 where no worker has an action of the stage
  std::vector<std::vector<Action>> workers;  // the actions of each worker, in program order

  int num_workers() const { return static_cast<int>(workers.size()); }
  std::int64_t num_actions() const;
  bool has_backward() const;
  bool splits_backward() const;  // into I and W, somewhere
  bool has_updates() const;
};

bool operator==(const Schedule& a, const Schedule& b);
bool operator!=(const Schedule& a, const Schedule& b);

// Derives the counts and the placement from the actions: the largest stage and micro-batch named, and for each stage
// the first worker that has it. Throws InvalidArgument for a negative number or a stage of kMaxStages or above.
Schedule schedule_from_actions(std::vector<std::vector<Action>> workers, std::string name = "");

// The schedule without the micro-batches from `count` on. It runs if the whole one does: nothing waits for
// what is gone.
Schedule first_micro_batches(Schedule schedule, int count);

// The schedule with an update of each stage, and of none. The updates stand at the end of each worker's list, in the
// order in which its stages are done: an update in front of another stage's actions would keep others waiting.
//
//   F0 F1 B0 B1  ->  F0 F1 B0 B1 U
Schedule with_updates(Schedule schedule);
Schedule without_updates(Schedule schedule);

// The text form: one line a worker, actions separated by blanks. A token is `F0`, meaning the stage numbered like the
// line, or with its stage in front, `2F0`; an update is `U` or `2U`. Blank lines and what follows a `#` are skipped.
//
//     F0 F1 B0 B1
//     F0 B0 F1 B1
//
// `to_text` leaves the stage out when every stage lives on the worker of its own number.
std::string to_text(const Schedule& schedule);
Schedule parse_text(std::string_view text);

// PyTorch's CSV form: one row a worker, cells such as `0F0`, `1B2`, `0I3`, `0W3`; an empty cell is an idle slot and is
// dropped. Recompute is written `0R3`, an update `0U`. A cell may hold a forward and a backward,
// `(0F5;7B2)OVERLAP_F_B`: they are two actions, see Action::shares_cell.
std::string to_csv(const Schedule& schedule);
Schedule parse_csv(std::string_view text);

// Either form, told apart by content: a comma outside a comment makes it CSV.
Schedule parse_schedule(std::string_view text);

}  // namespace gpipe
