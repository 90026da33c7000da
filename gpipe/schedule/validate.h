// The proof: a schedule is shown to be right for any timing before it runs, or refused with a counter-example.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

enum class Rule {
  kCompleteness,  // 1: every stage and micro-batch has one F, then at most one R, then one B, or one I and then one W
  kPlacement,     // 2: each stage lives on one worker
  kChannelOrder,  // 3: the messages of a flow are received in the order they are sent
  kDeadlock,      // 3: program order, data, channel and capacity edges have no cycle
  kMemory,        // 5: peak bytes per worker within the limit
};

const char* name(Rule rule);

// `what()` prints the rule, the offending actions and, for a deadlock, the cycle with one edge a line.
class ScheduleError : public Error {
 public:
  ScheduleError(Rule rule, const std::string& what, std::vector<Action> actions, std::vector<std::string> cycle = {})
      : Error(what), rule_(rule), actions_(std::move(actions)), cycle_(std::move(cycle)) {}
  Rule rule() const { return rule_; }
  const std::vector<Action>& actions() const { return actions_; }  // the offending ones
  const std::vector<std::string>& cycle() const { return cycle_; }

 private:
  Rule rule_;
  std::vector<Action> actions_;
  std::vector<std::string> cycle_;
};

struct ValidateOptions {
  Routes routes;                                 // skips and ties of the model
  std::vector<StageBytes> stages;                // for the memory rule; empty = not checked
  std::vector<std::int64_t> memory_limit_bytes;  // one per worker; empty = no limits
  bool compute_capacities = true;                // false: prove only, at unbounded capacities
};

struct FlowCertificate {
  Flow flow;
  bool is_local = false;  // both stages on one worker: nothing ever waits, the capacity is what it has to hold
  // Together these are live, and none of them alone can be lowered; the largest is the least uniform live capacity.
  int live_capacity = 1;
  // At this capacity no sender ever waits, whatever the actions cost. Absent for schedules too large to compute it.
  std::optional<int> free_capacity;
};

// Whether the schedule would run on a transport that promises less, and if not, why not.
struct Survival {
  bool survives = true;
  std::vector<std::string> counter_example;  // one line an edge
};

struct Certificate {
  bool forward_only = false;
  bool canonical = true;              // 6: every stage accumulates its gradients in ascending micro-batch order
  std::string non_canonical_because;  // empty when canonical
  std::vector<FlowCertificate> flows;
  std::vector<double> peak_activations;  // per worker, see peak_activations_by_worker
  std::vector<std::int64_t> peak_bytes;  // per worker; empty without ValidateOptions::stages
  Survival rendezvous;                   // a send returns only when its receiver has come to the receive
  Survival one_channel_per_pair;         // all flows from one worker to another share one ordered channel
  // Each worker carries one message at a time, in the order that `message_order` finds; gpipe/schedule/message_order.h.
  Survival one_engine;
};

// Throws ScheduleError. Takes memory linear in the number of actions named, and the time to sort as many, whatever
// numbers a file claims.
Certificate validate(const Schedule& schedule, const ValidateOptions& options = {});

}  // namespace gpipe
