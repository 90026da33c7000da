#include "gpipe/execute/assembly.h"

#include <utility>

#include "gpipe/schedule/validate.h"

namespace gpipe {
namespace {

std::vector<int> stage_of_layer(const PartitionedModel& model) {
  std::vector<int> stages;
  for (std::size_t stage = 0; stage < model.layers_per_stage.size(); ++stage) {
    stages.insert(stages.end(), model.layers_per_stage[stage], static_cast<int>(stage));
  }
  return stages;
}

// Which forwards of which stage the schedule runs again.
void mark_recomputed(const Schedule& schedule, std::vector<StageParts>& parts) {
  for (StageParts& part : parts) part.recomputed.resize(schedule.num_micro_batches);
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kRecompute) parts[action.stage].recomputed[action.micro_batch] = true;
    }
  }
}

void assign_skips(const PartitionedModel& model, const FlowTable& table, std::vector<StageParts>& parts) {
  const std::vector<int> stages = stage_of_layer(model);
  for (const Flow& flow : table.flows) {
    if (flow.kind != FlowKind::kSkip) continue;
    std::vector<std::string> names;
    for (const SkipProfile& skip : model.skips) {
      if (stages[skip.from] == flow.source && stages[skip.to] == flow.destination) names.push_back(skip.name);
    }
    parts[flow.source].skips_out.push_back(names);
    parts[flow.destination].skips_in.push_back(names);
  }
}

void assign_ties(const PartitionedModel& model, const FlowTable& table, std::vector<StageParts>& parts) {
  const std::vector<int> stages = stage_of_layer(model);
  // The weights each flow carries: of all ties between its two stages, in the order of `model.ties`.
  for (const Flow& flow : table.flows) {
    if (flow.kind != FlowKind::kTie) continue;
    Tensors weights;
    for (const Tie& tie : model.ties) {
      if (stages[tie.owner.layer] != flow.destination) continue;
      for (const Tie::Use& user : tie.users) {
        if (stages[user.layer] == flow.source) weights.push_back(user.weight);
      }
    }
    parts[flow.source].ties_out.push_back(std::move(weights));
  }
  std::vector<std::vector<int>> sent(parts.size(), std::vector<int>(parts.size()));  // by source and owner's stage
  for (const Tie& tie : model.ties) {
    const int owner = stages[tie.owner.layer];
    OwnedTie owned;
    owned.weight = tie.owner.weight;
    for (const Tie::Use& user : tie.users) {
      const int source = stages[user.layer];
      OwnedTie::Part part;
      if (source == owner) {
        part.local = user.weight;
      } else {
        part.source = source;
        part.index = sent[source][owner]++;
      }
      owned.parts.push_back(std::move(part));
    }
    parts[owner].ties_owned.push_back(std::move(owned));
  }
}

std::vector<StageParts> make_parts(const PartitionedModel& model, const Schedule& schedule, const FlowTable& table) {
  std::vector<StageParts> parts(schedule.num_stages);
  std::size_t layer = 0;
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    parts[stage].index = stage;
    parts[stage].is_last = stage == schedule.num_stages - 1;
    if (!model.accounts.empty()) parts[stage].account = model.accounts[stage];
    if (!model.streams.empty()) parts[stage].stream = model.streams[stage];
    if (!model.rematerialization.empty()) parts[stage].rematerialization = model.rematerialization[stage];
    parts[stage].skips = model.skips;
    for (int count = model.layers_per_stage[stage]; count > 0; --count) {
      parts[stage].layers.push_back(model.layers[layer++]);
    }
  }
  mark_recomputed(schedule, parts);
  assign_skips(model, table, parts);
  assign_ties(model, table, parts);
  return parts;
}

}  // namespace

Routes make_routes(const PartitionedModel& model) {
  const std::vector<int> stages = stage_of_layer(model);
  Routes routes;
  for (const SkipProfile& skip : model.skips) routes.skips.push_back({stages[skip.from], stages[skip.to]});
  for (const Tie& tie : model.ties) {
    for (const Tie::Use& user : tie.users) routes.ties.push_back({stages[tie.owner.layer], stages[user.layer]});
  }
  return routes;
}

Assembly::Assembly(const PartitionedModel& model, const Schedule& schedule, const Ranks* ranks, int number)
    : number_(number) {
  ValidateOptions options;
  options.routes = make_routes(model);
  std::vector<int> capacities;
  // Room enough that no sender ever waits for it. Messages are handed over, not copied: what waits in a flow would wait in
  // its sender otherwise.
  for (const FlowCertificate& flow : validate(schedule, options).flows) {
    capacities.push_back(flow.free_capacity.value_or(flow.live_capacity));
  }
  const FlowTable table = make_flow_table(schedule, options.routes);
  std::vector<Stage*> pointers;
  for (StageParts& parts : make_parts(model, schedule, table)) {
    const bool is_here = ranks == nullptr || schedule.worker_of_stage[parts.index] == ranks->own_worker();
    stages_.push_back(is_here ? std::make_unique<Stage>(std::move(parts)) : nullptr);
    pointers.push_back(stages_.back().get());
  }
  if (ranks == nullptr) {
    executor_ = std::make_unique<Executor<Stage>>(schedule, options.routes, capacities, std::move(pointers));
    return;
  }
  std::size_t num_uses = model.skips.size();
  for (const Tie& tie : model.ties) num_uses += tie.users.size();
  executor_ = std::make_unique<Executor<Stage>>(
      schedule, options.routes, ranks->connect(table, capacities, static_cast<int>(num_uses)), std::move(pointers));
}

void Assembly::begin_step(const StepSettings& settings) {
  for (const auto& stage : stages_) {
    if (stage != nullptr) stage->begin_step(settings);
  }
}

void Assembly::follow_caller() const {
  for (const auto& stage : stages_) {
    if (stage != nullptr) stage->follow_caller();
  }
}

void Assembly::lead_caller() const {
  for (const auto& stage : stages_) {
    if (stage != nullptr) stage->lead_caller();
  }
}

void Assembly::end_step() {
  for (const auto& stage : stages_) {
    if (stage != nullptr) stage->end_step();
  }
}

}  // namespace gpipe
