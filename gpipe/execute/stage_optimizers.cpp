#include "gpipe/execute/stage_optimizers.h"

#include <algorithm>
#include <map>

#include "gpipe/execute/engine/engine.h"
#include "gpipe/execute/step/stage_work.h"
#include "gpipe/model/optimizer_slots.h"
#include "gpipe/model/update_in_blocks.h"

namespace gpipe::detail {
namespace {

constexpr int kNoStage = -1;

// The stage that updates each parameter. One that several layers of one stage use is listed with the first.
std::map<const c10::TensorImpl*, int> stage_of_parameters(const Engine& engine) {
  std::map<const c10::TensorImpl*, int> stages;
  for (const ChainLayer& layer : engine.model().built_layers()) {
    for (const at::Tensor& parameter : layer.layer.module->parameters()) {
      stages.emplace(parameter.unsafeGetTensorImpl(), engine.cut().stage_of(layer.index));
    }
  }
  return stages;
}

bool same_tensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

// While it lives, steps of the engine update the stages.
class UpdateOfSteps {
 public:
  UpdateOfSteps(Engine& engine, Engine::Update update) : engine_(engine) { engine_.set_update(std::move(update)); }
  ~UpdateOfSteps() { engine_.set_update(nullptr); }
  UpdateOfSteps(const UpdateOfSteps&) = delete;
  UpdateOfSteps& operator=(const UpdateOfSteps&) = delete;

 private:
  Engine& engine_;
};

}  // namespace

// Those of one stage, or of none: parameters that are not the pipeline's.
struct StageUpdates::Part {
  int stage = kNoStage;
  std::vector<std::size_t> groups;  // its groups, among those of the whole optimizer
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<UpdateInBlocks> steps;  // of the optimizer
};

StageUpdates::StageUpdates(Pipeline pipeline, MakePart make_part)
    : pipeline_(std::move(pipeline)), make_part_(std::move(make_part)) {}

StageUpdates::~StageUpdates() = default;

void StageUpdates::make_parts(torch::optim::Optimizer& whole) {
  parts_.clear();
  parameters_.clear();
  const std::map<const c10::TensorImpl*, int> stages = stage_of_parameters(pipeline_->engine());
  std::map<int, std::map<std::size_t, std::vector<at::Tensor>>> by_stage;  // then by group
  for (std::size_t group = 0; group < whole.param_groups().size(); ++group) {
    parameters_.push_back(whole.param_groups()[group].params());
    for (const at::Tensor& parameter : parameters_.back()) {
      const auto found = stages.find(parameter.unsafeGetTensorImpl());
      by_stage[found == stages.end() ? kNoStage : found->second][group].push_back(parameter);
    }
  }
  for (auto& [stage, by_group] : by_stage) {
    Part part;
    part.stage = stage;
    Groups groups;
    for (auto& [group, parameters] : by_group) {
      part.groups.push_back(group);
      groups.emplace_back(std::move(parameters));
    }
    part.optimizer = make_part_(std::move(groups));
    part.steps = std::make_unique<UpdateInBlocks>(make_part_);
    parts_.push_back(std::move(part));
  }
}

// While it lives, the states of a part's parameters are the part's.
class StageUpdates::Lent {
 public:
  Lent(torch::optim::Optimizer& whole, torch::optim::Optimizer& part) : whole_(whole), part_(part) {
    for (const torch::optim::OptimizerParamGroup& group : part_.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto found = whole_.state().find(optimizer_state_key(parameter));
        if (found != whole_.state().end()) part_.state()[found->first] = std::move(found->second);
      }
    }
  }
  ~Lent() {
    for (auto& [key, state] : part_.state()) whole_.state()[key] = std::move(state);
    part_.state().clear();
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  torch::optim::Optimizer& whole_;
  torch::optim::Optimizer& part_;
};

std::vector<std::unique_ptr<StageUpdates::Lent>> StageUpdates::lend(torch::optim::Optimizer& whole) {
  const std::vector<torch::optim::OptimizerParamGroup>& groups = whole.param_groups();
  const bool are_made_for_these =
      std::equal(groups.begin(), groups.end(), parameters_.begin(), parameters_.end(),
                 [](const auto& group, const auto& parameters) { return same_tensors(group.params(), parameters); });
  if (!are_made_for_these) make_parts(whole);
  std::vector<std::unique_ptr<Lent>> lent;
  for (const Part& part : parts_) {
    for (std::size_t index = 0; index < part.groups.size(); ++index) {
      part.optimizer->param_groups()[index].set_options(groups[part.groups[index]].options().clone());
    }
    lent.push_back(std::make_unique<Lent>(whole, *part.optimizer));
  }
  return lent;
}

void StageUpdates::update(int stage) const {
  for (const Part& part : parts_) {
    if (part.stage == stage) part.steps->step(*part.optimizer);
  }
}

void StageUpdates::book(torch::optim::Optimizer& whole) {
  if (whole.state().size() == num_states_) return;
  pipeline_->engine().split()->memory().book(whole);
  num_states_ = whole.state().size();
}

bool StageUpdates::step(torch::optim::Optimizer& whole) {
  Engine& engine = pipeline_->engine();
  const CallLock::Scope lock(engine.calls(), "step of the optimizers");
  if (engine.split() == nullptr) return false;
  {
    const auto lent = lend(whole);
    run_on_stages(engine, [&](int stage) { update(stage); });
    update(kNoStage);
  }
  book(whole);
  return true;
}

StepResult StageUpdates::train_step(torch::optim::Optimizer& whole,
                                    const std::function<StepResult(PipelineImpl&)>& train) {
  Engine& engine = pipeline_->engine();
  { const CallLock::Scope is_idle(engine.calls(), "train_step of the optimizers"); }
  StepResult result;
  if (engine.split() == nullptr) {  // the first step makes the stages
    result = train(*pipeline_);
    step(whole);
    return result;
  }
  {
    const auto lent = lend(whole);
    const UpdateOfSteps update_of_steps(engine, [this](int stage) { update(stage); });
    result = train(*pipeline_);
    update(kNoStage);
  }
  book(whole);
  return result;
}

}  // namespace gpipe::detail
