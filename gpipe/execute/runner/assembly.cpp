#include "gpipe/execute/runner/assembly.h"

#include <fmt/format.h>

#include <utility>

namespace gpipe::detail {
namespace {

// Which forwards of which stage the schedule runs again.
void mark_recomputed(const Schedule& schedule, std::vector<StageParts>& stages) {
  for (StageParts& stage : stages) stage.recomputed.resize(schedule.num_micro_batches);
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kRecompute) stages[action.stage].recomputed[action.micro_batch] = true;
    }
  }
}

// Gradients that an input gradient adds at once are added up in the order of the input gradients; if that is not the
// order of the micro-batches, all wait for the weight gradients.
void choose_deferred_weights(const Schedule& schedule, DeferredWeights which, std::vector<StageParts>& stages) {
  std::vector<int> last(stages.size(), -1);
  for (StageParts& stage : stages) stage.deferred_weights = which;
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (!makes_input_grad(action.kind)) continue;
      if (action.micro_batch < last[action.stage]) {
        stages[action.stage].deferred_weights = DeferredWeights::kAll;
        stages[action.stage].defers_for_order = true;
      }
      last[action.stage] = action.micro_batch;
    }
  }
}

void assign_skips(const Cut& cut, const std::vector<SkipProfile>& skips, const FlowTable& table,
                  std::vector<StageParts>& stages) {
  for (const Flow& flow : table.flows) {
    if (flow.kind != FlowKind::kSkip) continue;
    std::vector<std::string> names;
    for (const SkipProfile& skip : skips) {
      if (cut.stage_of(skip.from) == flow.source && cut.stage_of(skip.to) == flow.destination) {
        names.push_back(skip.name);
      }
    }
    stages[flow.source].skips_out.push_back(names);
    stages[flow.destination].skips_in.push_back(names);
  }
}

// The weights each tie flow carries: of all ties between its two stages, in the order of the model's ties.
void assign_ties_out(const Cut& cut, const std::vector<Tie>& ties, const FlowTable& table,
                     std::vector<StageParts>& stages) {
  for (const Flow& flow : table.flows) {
    if (flow.kind != FlowKind::kTie) continue;
    Tensors weights;
    for (const Tie& tie : ties) {
      if (cut.stage_of(tie.owner.layer) != flow.destination) continue;
      for (const Tie::Use& user : tie.users) {
        if (cut.stage_of(user.layer) == flow.source) weights.push_back(user.weight);
      }
    }
    stages[flow.source].ties_out.push_back(std::move(weights));
  }
}

void assign_ties_owned(const Cut& cut, const std::vector<Tie>& ties, std::vector<StageParts>& stages) {
  std::vector<std::vector<int>> sent(stages.size(), std::vector<int>(stages.size()));  // by source and owner's stage
  for (const Tie& tie : ties) {
    const int owner = cut.stage_of(tie.owner.layer);
    OwnedTie owned;
    owned.weight = tie.owner.weight;
    for (const Tie::Use& user : tie.users) {
      const int source = cut.stage_of(user.layer);
      OwnedTie::Part part;
      if (source == owner) {
        part.local = user.weight;
      } else {
        part.source = source;
        part.index = sent[source][owner]++;
      }
      owned.parts.push_back(std::move(part));
    }
    stages[owner].ties_owned.push_back(std::move(owned));
  }
}

std::vector<StageParts> make_stage_parts(const Assembly::Parts& parts, const ProvenSchedule& proven) {
  const Cut& cut = parts.cut;
  const std::vector<SkipProfile>& skips = cut.skips_in(parts.is_training);
  std::vector<StageParts> stages(proven.schedule.num_stages);
  std::size_t layer = 0;
  for (int index = 0; index < proven.schedule.num_stages; ++index) {
    StageParts& stage = stages[index];
    stage.index = index;
    stage.is_last = index == proven.schedule.num_stages - 1;
    stage.account = parts.split.memory().account(index);
    stage.stream = parts.split.stream(index);
    if (parts.is_training && !cut.rematerialization.empty()) stage.rematerialization = cut.rematerialization[index];
    stage.skips = skips;
    for (int count = cut.layers_per_stage[index]; count > 0; --count) {
      stage.layers.push_back(parts.model.layers()[layer++]);
    }
  }
  mark_recomputed(proven.schedule, stages);
  choose_deferred_weights(proven.schedule, parts.deferred_weights, stages);
  assign_skips(cut, skips, proven.table, stages);
  assign_ties_out(cut, parts.model.ties(), proven.table, stages);
  assign_ties_owned(cut, parts.model.ties(), stages);
  return stages;
}

}  // namespace

Assembly::Assembly(const Parts& parts, std::shared_ptr<const ProvenSchedule> proven, int number) : number_(number) {
  std::vector<Stage*> pointers;
  for (StageParts& stage : make_stage_parts(parts, *proven)) {
    const bool is_here = parts.split.runs_stage(stage.index);
    stages_.push_back(is_here ? std::make_unique<Stage>(std::move(stage)) : nullptr);
    pointers.push_back(stages_.back().get());
  }
  std::size_t num_routed = parts.cut.skips_in(parts.is_training).size();
  for (const Tie& tie : parts.model.ties()) num_routed += tie.users.size();
  FlowTensors most;
  most.routed = static_cast<int>(num_routed);
  for (int stage = 0; stage < parts.cut.num_stages(); ++stage) {
    const auto stream = parts.split.stream(stage);
    most.pinned.push_back(stream != nullptr && stream->device().is_cuda());
  }
  FlowEnds<Packet> ends = parts.group.connect(*proven, most);
  executor_ = std::make_unique<Executor<Stage>>(std::move(proven), std::move(ends), std::move(pointers));
}

std::vector<Stage*> Assembly::own_stages() const {
  std::vector<Stage*> own;
  for (const auto& stage : stages_) {
    if (stage != nullptr) own.push_back(stage.get());
  }
  return own;
}

void Assembly::begin_step(const StepSettings& settings) {
  for (Stage* stage : own_stages()) stage->begin_step(settings);
}

void Assembly::end_step() {
  for (Stage* stage : own_stages()) stage->end_step();
}

Timeline Assembly::run(Workers& workers, Phase phase, const Executor<Stage>::Around& around,
                       const WatchdogOptions& watchdog) {
  std::vector<std::shared_ptr<StageStream>> streams;
  for (const Stage* stage : own_stages()) streams.push_back(stage->stream());
  CallerOrder order(std::move(streams));
  Timeline timeline = executor_->run(workers, phase, around, watchdog);
  order.make_caller_wait();
  for (const Stage* stage : own_stages()) {
    if (stage->stream() != nullptr && stage->stream()->stream()) {
      timeline.notes.push_back(fmt::format(
          "stage {}: it is on {}, which works behind the program: its spans are those in which its work was "
          "handed over",
          stage->index(), stage->stream()->device().str()));
    }
    for (const std::string& node : stage->unsplit_nodes()) {
      timeline.notes.push_back(
          fmt::format("stage {}: the backward of {} cannot be split, so the weights below it get their gradients "
                      "together with its input",
                      stage->index(), node));
    }
  }
  return timeline;
}

}  // namespace gpipe::detail
