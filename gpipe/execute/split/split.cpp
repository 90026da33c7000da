#include "gpipe/execute/split/split.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>
#include <optional>

#include "gpipe/error.h"
#include "gpipe/execute/values/checked_options.h"

namespace gpipe::detail {

Split::Split(const Model& model, const Cut& cut, const PipelineOptions& options, Group& group)
    : model_(model), cut_(cut), options_(options), group_(group) {
  std::vector<int> worker_of_layer;
  for (int layer = 0; layer < model.num_layers(); ++layer) worker_of_layer.push_back(cut.worker_of_layer(layer));
  bring_tied_values_ = group.connect_ties(model.ties(), worker_of_layer);
}

bool Split::runs_stage(int stage) const { return group_.runs_worker(cut_.worker_of_stage[stage]); }

std::shared_ptr<StageStream> Split::stream(int stage) const {
  return streams_.empty() ? nullptr : streams_[static_cast<std::size_t>(stage)];
}

void Split::make_streams() {
  for (int stage = 0; stage < cut_.num_stages(); ++stage) {
    const std::optional<torch::Device> device = device_of_stage(options_, stage);
    if (!device) return;
    streams_.push_back(runs_stage(stage) ? std::make_shared<StageStream>(*device) : nullptr);
  }
  for (const ChainLayer& layer : model_.built_layers()) {
    layer.layer.module->to(streams_[cut_.stage_of(layer.index)]->device());
  }
}

void Split::place_tied_weights() const {
  const auto device_of = [&](int layer) { return *device_of_stage(options_, cut_.stage_of(layer)); };
  for (const Tie& tie : model_.ties()) {
    for (const Tie::Use& user : tie.users) {
      if (tie.owner.module == nullptr && user.module != nullptr) {  // another rank's, which sends its values
        at::Tensor weight = user.weight;
        if (weight.device() != device_of(user.layer)) weight.set_data(weight.detach().to(device_of(user.layer)));
        continue;
      }
      if (user.module == nullptr || device_of(tie.owner.layer) == device_of(user.layer)) continue;
      throw InvalidArgument(
          fmt::format("layers \"{}\" and \"{}\" are tied, but on the devices {} and {}; a tied weight has to "
                      "be on one device",
                      model_.layers()[tie.owner.layer].name, model_.layers()[user.layer].name,
                      device_of(tie.owner.layer).str(), device_of(user.layer).str()));
    }
  }
}

void Split::place_layers() {
  if (streams_.empty()) make_streams();
  if (!streams_.empty()) place_tied_weights();
  if (!options_.measure_memory()) return;
  if (!memory_.is_open()) memory_.open(cut_, model_.built_layers(), options_.memory_limit_bytes());
  memory_.book_layers();
}

Routes Split::routes(const std::vector<SkipProfile>& skips) const {
  Routes routes;
  for (const SkipProfile& skip : skips) routes.skips.push_back({cut_.stage_of(skip.from), cut_.stage_of(skip.to)});
  for (const Tie& tie : model_.ties()) {
    for (const Tie::Use& user : tie.users) {
      routes.ties.push_back({cut_.stage_of(tie.owner.layer), cut_.stage_of(user.layer)});
    }
  }
  return routes;
}

std::vector<ReducedParameter> Split::reduced_parameters() const {
  std::map<const at::TensorImpl*, std::size_t> known;
  std::vector<ReducedParameter> parameters;
  for (const ChainLayer& layer : model_.built_layers()) {
    for (const at::Tensor& parameter : layer.layer.module->parameters()) {
      if (!parameter.requires_grad()) continue;
      const auto [found, is_new] = known.try_emplace(parameter.unsafeGetTensorImpl(), parameters.size());
      if (is_new) {
        parameters.push_back({parameter, cut_.stage_of(layer.index), false});
      } else {
        parameters[found->second].is_late = true;  // its layers may be in several stages
      }
    }
  }
  for (const Tie& tie : model_.ties()) {
    const auto found = known.find(tie.owner.weight.unsafeGetTensorImpl());
    if (found != known.end()) parameters[found->second].is_late = true;
  }
  return parameters;
}

}  // namespace gpipe::detail
