// Executor: the one interpreter of schedules. It knows flows, actions and time; what a stage does is the stage's
// affair.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "gpipe/interpret/flow_ends.h"
#include "gpipe/interpret/throw_action_error.h"
#include "gpipe/interpret/watchdog.h"
#include "gpipe/interpret/workers.h"
#include "gpipe/os/thread_clock.h"
#include "gpipe/report/timeline.h"
#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/proof.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::detail {

// Which actions of the schedule a run takes: a drop-in forward and its backward are two halves of one step.
enum class Phase { kAll, kForward, kBackward };

// Stage: `using Message = …;`, and, each called on its worker's thread only,
//   void forward(int micro_batch, std::vector<Message> inputs, std::vector<Message>& outputs)
//   void recompute(int micro_batch)
//   void backward(int micro_batch, std::vector<Message> inputs, std::vector<Message>& outputs)
//   void input_grad(int micro_batch, std::vector<Message> inputs, std::vector<Message>& outputs)
//   void weight_grad(int micro_batch)
//   void give_tied(std::vector<Message>& outputs)   after its last backward: gradients of weights that other stages own
//   void take_tied(int source, Message input)       those of weights it owns; before its update, if it has one, or else
//                                                   after its worker's last action
//   void settle()                                   adds these up; after that, once a step with a backward
//   void update()                                   after that, if the schedule has updates
//   std::string where() const    what it is at, for an error message: "layer 3 (relu)"; may be empty; any thread
//   std::string failed_at() const    the same after it has thrown, with more
// Inputs and outputs come in the order of the stage's flows in the flow table; `outputs` has their number.
//
// Thread-compatible: one step at a time.
template <typename Stage>
class Executor {
 public:
  using Message = typename Stage::Message;
  using Clock = std::chrono::steady_clock;

  // The workers in this process are those of the stages that are not null; they take and put at `ends`, of which there
  // is one per flow. REQUIRES: `stages` outlive the executor, one per stage of the schedule.
  Executor(std::shared_ptr<const ProvenSchedule> proven, FlowEnds<Message> ends, std::vector<Stage*> stages)
      : proven_(std::move(proven)), stages_(std::move(stages)), ends_(std::move(ends)) {
    for (int worker = 0; worker < schedule_.num_workers(); ++worker) {
      at_.push_back(std::make_unique<WorkerState>());
      last_backward_.emplace_back(find_last_backwards(worker));
      if (is_here(worker)) workers_here_.push_back(worker);
    }
  }

  const Schedule& schedule() const { return schedule_; }

  // Wraps what a worker does in a step, such as setting its thread-local state: calls its argument once.
  using Around = std::function<void(const std::function<void()>&)>;

  // Runs one step on the workers, which are as many as the schedule has in this process; the others' spans are empty.
  // The first error wins, every flow is cancelled, and it is rethrown as an ActionError, or as it is if it is a
  // PeerError; the executor can be used again if all flows are inside the process.
  //
  // With a watchdog, a step in which no worker gets on for its time is cancelled, too: throws StuckError.
  Timeline run(
      Workers& workers, Phase phase = Phase::kAll, const Around& around = [](const auto& work) { work(); },
      const WatchdogOptions& watchdog = {}) {
    for_each_end([](auto& end) { end.reset(); });
    for (const auto& at : at_) at->store(-1, WorkerActivity::kDone);
    Timeline timeline;
    timeline.name = schedule_.name;
    timeline.num_stages = schedule_.num_stages;
    timeline.num_micro_batches = schedule_.num_micro_batches;
    timeline.flows = table_.flows;
    timeline.workers.resize(schedule_.workers.size());
    const Clock::time_point start = Clock::now();
    const auto cancel = [&] { for_each_end([](auto& end) { end.cancel(); }); };
    const auto work = [&](int index) {
      const int worker = workers_here_[index];
      around([&] { run_worker(worker, phase, start, timeline.workers[worker]); });
    };
    if (watchdog.seconds > 0) {
      Watchdog dog(watchdog.seconds, at_);
      workers.run(work, cancel, {watchdog.seconds / 4, [&] {
                                   if (dog.is_stuck()) throw_stuck(watchdog);
                                 }});
    } else {
      workers.run(work, cancel);
    }
    add_up(timeline);
    return timeline;
  }

 private:
  template <typename Call>
  void for_each_end(const Call& call) {
    for (const auto& sink : ends_.sinks) {
      if (sink != nullptr) call(*sink);
    }
    for (const auto& source : ends_.sources) {
      if (source != nullptr) call(*source);
    }
  }

  bool is_here(int worker) const {
    for (int stage = 0; stage < schedule_.num_stages; ++stage) {
      if (schedule_.worker_of_stage[stage] == worker && stages_[stage] != nullptr) return true;
    }
    return false;
  }

  // The positions of its stages' last backwards among a worker's actions.
  std::vector<bool> find_last_backwards(int worker) const {
    const std::vector<Action>& actions = schedule_.workers[worker];
    std::vector<bool> found(schedule_.num_stages);
    std::vector<bool> last(actions.size());
    for (std::size_t index = actions.size(); index-- > 0;) {
      if (!makes_weight_grad(actions[index].kind) || found[actions[index].stage]) continue;
      found[actions[index].stage] = true;
      last[index] = true;
    }
    return last;
  }

  // Confined to its worker.
  void run_worker(int worker, Phase phase, Clock::time_point start, WorkerTimeline& timeline) {
    const std::vector<Action>& actions = schedule_.workers[worker];
    timeline.spans.reserve(actions.size());
    for (std::size_t index = 0; index < actions.size(); ++index) {
      const Action& action = actions[index];
      const bool is_forward = action.kind == ActionKind::kForward;
      if (phase != Phase::kAll && is_forward != (phase == Phase::kForward)) continue;
      at_[worker]->begin(static_cast<int>(index));
      try {
        timeline.spans.push_back(run_action(action, start, *at_[worker], timeline.processor_seconds));
        if (last_backward_[worker][index]) give_tied(action.stage, *at_[worker]);
      } catch (const CancelledError&) {
        throw;
      } catch (const PeerError&) {
        throw;
      } catch (...) {
        throw_action_error(worker, action, stages_[action.stage]->failed_at());
      }
    }
    if (phase != Phase::kForward && settles_at_the_end_) {
      try {
        settle(worker);
      } catch (const CancelledError&) {
        throw;
      } catch (const PeerError&) {
        throw;
      } catch (...) {
        throw_action_error(worker, actions.back(), "adding up tied gradients");
      }
    }
    at_[worker]->end();
  }

  void give_tied(int stage, WorkerState& at) {
    const std::vector<int>& flows = table_.stages[stage].step_outputs;
    if (flows.empty()) return;
    std::vector<Message> outputs(flows.size());
    stages_[stage]->give_tied(outputs);
    put(flows, std::move(outputs), at);
  }

  void take_tied(const std::vector<int>& flows, WorkerState& at) {
    for (const int flow : flows) {
      at.wait_for(flow, WorkerActivity::kTake);
      stages_[table_.flows[flow].destination]->take_tied(table_.flows[flow].source, ends_.sources[flow]->take(0));
    }
  }

  void settle(int worker) {
    take_tied(table_.step_inputs[worker], *at_[worker]);
    for (int stage = 0; stage < schedule_.num_stages; ++stage) {
      if (schedule_.worker_of_stage[stage] == worker) stages_[stage]->settle();
    }
  }

  // Adds the processor time of the action to `processor_seconds`.
  Span run_action(const Action& action, Clock::time_point start, WorkerState& at, double& processor_seconds) {
    const auto now = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    Stage& stage = *stages_[action.stage];
    const FlowTable::Stage& flows = table_.stages[action.stage];
    Span span{action, 0, 0};
    const auto measure = [&](const auto& work) {
      span.start_seconds = now();
      const double processor_start = thread_seconds();
      work();
      processor_seconds += thread_seconds() - processor_start;
      span.end_seconds = now();
    };
    switch (action.kind) {
      case ActionKind::kForward: {
        std::vector<Message> inputs = take(flows.forward_inputs, action.micro_batch, at);
        std::vector<Message> outputs(flows.forward_outputs.size());
        measure([&] { stage.forward(action.micro_batch, std::move(inputs), outputs); });
        put(flows.forward_outputs, std::move(outputs), at);
        break;
      }
      case ActionKind::kBackward:
      case ActionKind::kInputGrad: {
        std::vector<Message> inputs = take(flows.backward_inputs, action.micro_batch, at);
        std::vector<Message> outputs(flows.backward_outputs.size());
        measure([&] {
          if (action.kind == ActionKind::kBackward) {
            stage.backward(action.micro_batch, std::move(inputs), outputs);
          } else {
            stage.input_grad(action.micro_batch, std::move(inputs), outputs);
          }
        });
        put(flows.backward_outputs, std::move(outputs), at);
        break;
      }
      case ActionKind::kRecompute:
        measure([&] { stage.recompute(action.micro_batch); });
        break;
      case ActionKind::kWeightGrad:
        measure([&] { stage.weight_grad(action.micro_batch); });
        break;
      case ActionKind::kUpdate:
        take_tied(flows.update_inputs, at);
        at.work();
        measure([&] {
          stage.settle();
          stage.update();
        });
        break;
    }
    return span;
  }

  std::vector<Message> take(const std::vector<int>& flows, int micro_batch, WorkerState& at) {
    std::vector<Message> messages;
    messages.reserve(flows.size());
    for (const int flow : flows) {
      at.wait_for(flow, WorkerActivity::kTake);
      messages.push_back(ends_.sources[flow]->take(micro_batch));
    }
    at.work();
    return messages;
  }

  void put(const std::vector<int>& flows, std::vector<Message> messages, WorkerState& at) {
    for (std::size_t index = 0; index < flows.size(); ++index) {
      at.wait_for(flows[index], WorkerActivity::kPut);
      ends_.sinks[flows[index]]->put(std::move(messages[index]));
    }
  }

  [[noreturn]] void throw_stuck(const WatchdogOptions& options) const {
    std::vector<StuckWorker> stuck;
    for (const int worker : workers_here_) {
      const auto [position, activity, flow] = at_[worker]->load();
      StuckWorker entry;
      entry.worker = worker;
      entry.activity = activity;
      if (position >= 0) {
        entry.action = schedule_.workers[worker][position];
        entry.where = stages_[entry.action->stage]->where();
      }
      if (flow >= 0) entry.flow = table_.flows[flow];
      stuck.push_back(entry);
    }
    const StuckError error(options.seconds, std::move(stuck));
    if (options.on_stuck) options.on_stuck(error);
    throw error;
  }

  const std::shared_ptr<const ProvenSchedule> proven_;
  const Schedule& schedule_ = proven_->schedule;
  const FlowTable& table_ = proven_->table;
  const std::vector<Stage*> stages_;
  const FlowEnds<Message> ends_;
  std::vector<int> workers_here_;
  std::vector<std::unique_ptr<WorkerState>> at_;  // of each worker
  std::vector<std::vector<bool>> last_backward_;  // by worker and position
  // Whether tied gradients are added up when a worker is done, not by updates.
  const bool settles_at_the_end_ = schedule_.has_backward() && !schedule_.has_updates();
};

}  // namespace gpipe::detail
