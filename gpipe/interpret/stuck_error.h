// StuckError: a step in which no worker gets on, and what each of them waits for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/flow.h"

namespace gpipe {

enum class WorkerActivity : std::uint8_t {
  kWork,  // runs an action
  kTake,  // waits for a message
  kPut,   // waits for room for a message
  kDone,  // has nothing to do
};

struct StuckWorker {
  int worker = 0;
  WorkerActivity activity = WorkerActivity::kDone;
  std::optional<Action> action;  // the one it is at
  std::string where;             // in the action: "layer 3 (relu)"
  std::optional<Flow> flow;      // the one it waits for, if it does
};

// `what()` has a line for each worker.
class StuckError : public Error {
 public:
  StuckError(double seconds, std::vector<StuckWorker> workers);
  const std::vector<StuckWorker>& workers() const { return workers_; }

 private:
  std::vector<StuckWorker> workers_;
};

}  // namespace gpipe
