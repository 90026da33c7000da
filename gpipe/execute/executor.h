// Executor: the one interpreter of schedules. It knows flows, actions and time; what a stage does is the stage's affair.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "gpipe/execute/action_error.h"
#include "gpipe/execute/workers.h"
#include "gpipe/report/timeline.h"
#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/transport/channel.h"

namespace gpipe {

// Which actions of the schedule a run takes: a drop-in forward and its backward are two halves of one step.
enum class Phase { kAll, kForward, kBackward };

// Stage: `using Message = …;`, and, each called on its worker's thread only,
//   void forward(int micro_batch, std::vector<Message> inputs, std::vector<Message>& outputs)
//   void recompute(int micro_batch)
//   void backward(int micro_batch, std::vector<Message> inputs, std::vector<Message>& outputs)
//   std::string where() const    what it is at, for an error message: "layer 3 (relu)"; may be empty
// Inputs and outputs come in the order of the stage's flows in the flow table; `outputs` has their number.
//
// Thread-compatible: one step at a time.
template <typename Stage>
class Executor {
 public:
  using Message = typename Stage::Message;
  using Clock = std::chrono::steady_clock;

  // REQUIRES: `validate` has passed the schedule with these routes; capacities are live, one per flow; `stages` outlive the
  // executor, one per stage of the schedule.
  Executor(Schedule schedule, const Routes& routes, const std::vector<int>& capacities, std::vector<Stage*> stages)
      : schedule_(std::move(schedule)), table_(make_flow_table(schedule_, routes)), stages_(std::move(stages)) {
    for (const int capacity : capacities) channels_.push_back(std::make_unique<Channel<Message>>(capacity));
  }

  const Schedule& schedule() const { return schedule_; }
  const FlowTable& flows() const { return table_; }

  // Wraps what a worker does in a step, such as setting its thread-local state: calls its argument once.
  using Around = std::function<void(const std::function<void()>&)>;

  // Runs one step on the workers, which are as many as the schedule's. The first error wins, every channel is cancelled, and
  // it is rethrown as an ActionError; the executor can be used again.
  Timeline run(
      Workers& workers, Phase phase = Phase::kAll, const Around& around = [](const auto& work) { work(); }) {
    for (const auto& channel : channels_) channel->reset();
    Timeline timeline;
    timeline.name = schedule_.name;
    timeline.num_stages = schedule_.num_stages;
    timeline.num_micro_batches = schedule_.num_micro_batches;
    timeline.flows = table_.flows;
    timeline.workers.resize(schedule_.workers.size());
    const Clock::time_point start = Clock::now();
    workers.run([&](int worker) { around([&] { run_worker(worker, phase, start, timeline.workers[worker]); }); },
                [&] {
                  for (const auto& channel : channels_) channel->cancel();
                });
    add_up(timeline);
    return timeline;
  }

 private:
  // Confined to its worker.
  void run_worker(int worker, Phase phase, Clock::time_point start, WorkerTimeline& timeline) {
    timeline.spans.reserve(schedule_.workers[worker].size());
    for (const Action& action : schedule_.workers[worker]) {
      const bool is_forward = action.kind == ActionKind::kForward;
      if (phase != Phase::kAll && is_forward != (phase == Phase::kForward)) continue;
      try {
        timeline.spans.push_back(run_action(action, start));
      } catch (const CancelledError&) {
        throw;
      } catch (...) {
        throw_action_error(worker, action, stages_[action.stage]->where());
      }
    }
  }

  Span run_action(const Action& action, Clock::time_point start) {
    const auto now = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    Stage& stage = *stages_[action.stage];
    const FlowTable::Stage& flows = table_.stages[action.stage];
    Span span{action, 0, 0};
    switch (action.kind) {
      case ActionKind::kForward: {
        std::vector<Message> inputs = take(flows.forward_inputs);
        std::vector<Message> outputs(flows.forward_outputs.size());
        span.start_seconds = now();
        stage.forward(action.micro_batch, std::move(inputs), outputs);
        span.end_seconds = now();
        put(flows.forward_outputs, std::move(outputs));
        break;
      }
      case ActionKind::kBackward: {
        std::vector<Message> inputs = take(flows.backward_inputs);
        std::vector<Message> outputs(flows.backward_outputs.size());
        span.start_seconds = now();
        stage.backward(action.micro_batch, std::move(inputs), outputs);
        span.end_seconds = now();
        put(flows.backward_outputs, std::move(outputs));
        break;
      }
      case ActionKind::kRecompute:
        span.start_seconds = now();
        stage.recompute(action.micro_batch);
        span.end_seconds = now();
        break;
      case ActionKind::kInputGrad:
      case ActionKind::kWeightGrad:
        throw InvalidArgument("a split backward cannot be executed yet; it can be proven and simulated");
    }
    return span;
  }

  std::vector<Message> take(const std::vector<int>& flows) {
    std::vector<Message> messages;
    messages.reserve(flows.size());
    for (const int flow : flows) messages.push_back(channels_[flow]->take());
    return messages;
  }

  void put(const std::vector<int>& flows, std::vector<Message> messages) {
    for (std::size_t index = 0; index < flows.size(); ++index) channels_[flows[index]]->put(std::move(messages[index]));
  }

  const Schedule schedule_;
  const FlowTable table_;
  const std::vector<Stage*> stages_;
  std::vector<std::unique_ptr<Channel<Message>>> channels_;
};

}  // namespace gpipe
