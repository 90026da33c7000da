#include "gpipe/checkpoint/optimizer_state.h"

#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "gpipe/checkpoint_files/safetensors_format.h"
#include "gpipe/model/optimizer_slots.h"
#include "gpipe/text/printable.h"

namespace gpipe::detail {
namespace {

// Note [Visiting options and states]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The one place that knows what libtorch's optimizers are made of. `visit(options, f)` calls f(name, value) for every
// option; `visit(state, options, f)` calls f(name, value, is_needed) for every slot, where a slot that is not needed
// may be undefined.

template <typename Options, typename Function>
void visit_adam(Options& options, Function f) {
  f("lr", options.lr());
  f("beta1", std::get<0>(options.betas()));
  f("beta2", std::get<1>(options.betas()));
  f("eps", options.eps());
  f("weight_decay", options.weight_decay());
  f("amsgrad", options.amsgrad());
}

template <typename State, typename Options, typename Function>
void visit_adam(State& state, const Options& options, Function f) {
  f("step", state.step(), true);
  f("exp_avg", state.exp_avg(), true);
  f("exp_avg_sq", state.exp_avg_sq(), true);
  f("max_exp_avg_sq", state.max_exp_avg_sq(), options.amsgrad());
}

template <typename Function>
void visit(torch::optim::AdamOptions& options, Function f) {
  visit_adam(options, f);
}
template <typename Function>
void visit(torch::optim::AdamWOptions& options, Function f) {
  visit_adam(options, f);
}
template <typename Function>
void visit(torch::optim::AdamParamState& state, const torch::optim::AdamOptions& options, Function f) {
  visit_adam(state, options, f);
}
template <typename Function>
void visit(torch::optim::AdamWParamState& state, const torch::optim::AdamWOptions& options, Function f) {
  visit_adam(state, options, f);
}

template <typename Function>
void visit(torch::optim::SGDOptions& options, Function f) {
  f("lr", options.lr());
  f("momentum", options.momentum());
  f("dampening", options.dampening());
  f("weight_decay", options.weight_decay());
  f("nesterov", options.nesterov());
}
template <typename Function>
void visit(torch::optim::SGDParamState& state, const torch::optim::SGDOptions& options, Function f) {
  f("momentum_buffer", state.momentum_buffer(), options.momentum() != 0);
}

template <typename Function>
void visit(torch::optim::RMSpropOptions& options, Function f) {
  f("lr", options.lr());
  f("alpha", options.alpha());
  f("eps", options.eps());
  f("weight_decay", options.weight_decay());
  f("momentum", options.momentum());
  f("centered", options.centered());
}
template <typename Function>
void visit(torch::optim::RMSpropParamState& state, const torch::optim::RMSpropOptions& options, Function f) {
  f("step", state.step(), true);
  f("square_avg", state.square_avg(), true);
  f("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
  f("grad_avg", state.grad_avg(), options.centered());
}

template <typename Function>
void visit(torch::optim::AdagradOptions& options, Function f) {
  f("lr", options.lr());
  f("lr_decay", options.lr_decay());
  f("weight_decay", options.weight_decay());
  f("initial_accumulator_value", options.initial_accumulator_value());
  f("eps", options.eps());
}
template <typename Function>
void visit(torch::optim::AdagradParamState& state, const torch::optim::AdagradOptions& /*options*/, Function f) {
  f("step", state.step(), true);
  f("sum", state.sum(), true);
}

template <typename OptimizerT, typename OptionsT, typename StateT>
struct OptimizerKind {
  using Optimizer = OptimizerT;
  using Options = OptionsT;
  using State = StateT;
  const char* name;
};
using Sgd = OptimizerKind<torch::optim::SGD, torch::optim::SGDOptions, torch::optim::SGDParamState>;
using Adam = OptimizerKind<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>;
using AdamW = OptimizerKind<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;
using RmsProp = OptimizerKind<torch::optim::RMSprop, torch::optim::RMSpropOptions, torch::optim::RMSpropParamState>;
using Adagrad = OptimizerKind<torch::optim::Adagrad, torch::optim::AdagradOptions, torch::optim::AdagradParamState>;

// Calls f with the kind of the optimizer.
template <typename Function>
auto with_kind(torch::optim::Optimizer& optimizer, Function f) {
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) return f(Sgd{"SGD"});
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) return f(Adam{"Adam"});
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) return f(AdamW{"AdamW"});
  if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) return f(RmsProp{"RMSprop"});
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) return f(Adagrad{"Adagrad"});
  throw InvalidArgument("the optimizer is none of SGD, Adam, AdamW, RMSprop and Adagrad: its state is not known");
}

using Names = std::map<const c10::TensorImpl*, std::string>;

// Layers that turn out to be other ranks' are emptied; an optimizer that was made before still has their parameters.
bool is_emptied(const at::Tensor& parameter) { return parameter.dim() == 1 && parameter.numel() == 0; }

Names names_of(torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  Names names;
  for (const auto& item : module.named_parameters()) names[item.value().unsafeGetTensorImpl()] = item.key();
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (names.count(parameter.unsafeGetTensorImpl()) != 0 || is_emptied(parameter)) continue;
      throw InvalidArgument(
          fmt::format("the optimizer has a parameter of shape [{}] that the model does not have; make it with the "
                      "parameters of the pipeline",
                      fmt::join(parameter.sizes(), ", ")));
    }
  }
  return names;
}

// The parameters of a group that the model has, each once, with their names: a layer that is in the chain twice gives
// its parameters twice. `seen` are those of the groups before.
NamedTensors parameters_of(const torch::optim::OptimizerParamGroup& group, const Names& names,
                           std::set<std::string>& seen) {
  NamedTensors parameters;
  for (const at::Tensor& parameter : group.params()) {
    const auto known = names.find(parameter.unsafeGetTensorImpl());
    if (known != names.end() && seen.insert(known->second).second) parameters.emplace_back(known->second, parameter);
  }
  return parameters;
}

template <typename K>
OptimizerState state_of_kind(const K& kind, torch::optim::Optimizer& optimizer, const Names& names) {
  OptimizerState result;
  result.type = kind.name;
  std::set<std::string> seen;
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    OptimizerGroup saved;
    auto& options = static_cast<typename K::Options&>(group.options());
    visit(options, [&](const char* name, auto value) { saved.options[name] = static_cast<double>(value); });
    for (const auto& [key, parameter] : parameters_of(group, names, seen)) {
      const std::string& parameter_name = key;
      saved.parameters.push_back(parameter_name);
      const auto found = optimizer.state().find(optimizer_state_key(parameter));
      if (found == optimizer.state().end()) continue;
      visit(static_cast<typename K::State&>(*found->second), options, [&](const char* name, auto& value, bool) {
        const std::string slot = parameter_name + "/" + name;
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
          if (value.defined()) result.slots.emplace_back(slot, value);
        } else {
          result.slots.emplace_back(slot, at::scalar_tensor(value, at::kLong));
        }
      });
    }
    result.groups.push_back(std::move(saved));
  }
  return result;
}

// Collects what is to change, and throws for what does not fit.
template <typename K>
class Preparation {
 public:
  Preparation(const K& kind, torch::optim::Optimizer& optimizer, const OptimizerState& state, const std::string& path)
      : optimizer_(optimizer), path_(path), slots_(state.slots.begin(), state.slots.end()) {
    if (state.type != kind.name) {
      fail(fmt::format("it was saved with {}, but this is {}", state.type, kind.name));
    }
    const std::size_t num_groups = optimizer.param_groups().size();
    if (num_groups != state.groups.size()) {
      fail(fmt::format("it was saved with {} parameter groups, but there are {}", state.groups.size(), num_groups));
    }
  }

  std::function<void()> prepare(const Names& names, const OptimizerState& state) {
    std::set<std::string> seen;
    for (std::size_t index = 0; index < state.groups.size(); ++index) {
      const NamedTensors parameters = parameters_of(optimizer_.param_groups()[index], names, seen);
      check_parameters(index, parameters, state.groups[index]);
      const typename K::Options options = add_options(index, state.groups[index]);
      for (const auto& [name, parameter] : parameters) add_state(name, parameter, options);
    }
    if (!slots_.empty()) {
      fail(fmt::format("{} and {} others belong to no parameter or are unknown to {}",
                       quoted_name(slots_.begin()->first), slots_.size() - 1, state.type));
    }
    return [&optimizer = optimizer_, changes = std::move(changes_)] {
      optimizer.state().clear();
      for (const auto& change : changes) change();
    };
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(path_, fmt::format(" holds the state of another optimizer: {}; make the same optimizer, or "
                                             "load the weights only",
                                             what));
  }

  void check_parameters(std::size_t index, const NamedTensors& parameters, const OptimizerGroup& saved) const {
    std::set<std::string> there(saved.parameters.begin(), saved.parameters.end());
    for (const auto& item : parameters) {
      if (there.erase(item.first) == 0) fail(fmt::format("{} is not in its group {}", quoted_name(item.first), index));
    }
    if (!there.empty()) fail(fmt::format("{} is in its group {}, but not here", quoted_name(*there.begin()), index));
  }

  typename K::Options add_options(std::size_t index, const OptimizerGroup& saved) {
    auto options = static_cast<const typename K::Options&>(optimizer_.param_groups()[index].options());
    std::set<std::string> known;
    visit(options, [&](const char* name, auto& value) {
      const auto found = saved.options.find(name);
      if (found == saved.options.end()) fail(fmt::format("group {} does not say its {}", index, name));
      value = static_cast<std::decay_t<decltype(value)>>(found->second);
      known.insert(name);
    });
    for (const auto& item : saved.options) {
      if (known.count(item.first) == 0) fail(fmt::format("group {} has an unknown option {}", index, item.first));
    }
    changes_.push_back([&optimizer = optimizer_, index, options] {
      static_cast<typename K::Options&>(optimizer.param_groups()[index].options()) = options;
    });
    return options;
  }

  void add_state(const std::string& parameter_name, const at::Tensor& parameter, const typename K::Options& options) {
    typename K::State state;
    std::vector<std::string> missing;
    bool has_any = false;
    visit(state, options, [&](const char* name, auto& value, bool is_needed) {
      const auto found = slots_.find(parameter_name + "/" + name);
      if (found == slots_.end()) {
        if (is_needed) missing.push_back(parameter_name + "/" + name);
        return;
      }
      has_any = true;
      take(found->first, found->second, parameter, value);
      slots_.erase(found);
    });
    if (!has_any) return;  // one that was never updated
    if (!missing.empty()) fail(fmt::format("it has no {}", quoted_name(missing.front())));
    changes_.push_back([&optimizer = optimizer_, parameter = parameter, state] {
      optimizer.state()[optimizer_state_key(parameter)] = std::make_unique<typename K::State>(state);
    });
  }

  void take(const std::string& name, const at::Tensor& saved, const at::Tensor& parameter, at::Tensor& value) const {
    if (saved.sizes() != parameter.sizes() || saved.scalar_type() != parameter.scalar_type()) {
      fail(fmt::format("{} is [{}] of {}, but its parameter [{}] of {}", quoted_name(name),
                       fmt::join(saved.sizes(), ", "), at::toString(saved.scalar_type()),
                       fmt::join(parameter.sizes(), ", "), at::toString(parameter.scalar_type())));
    }
    const torch::NoGradGuard no_grad;
    const bool fits_as_it_is = parameter.is_contiguous() && parameter.device().is_cpu();
    value = fits_as_it_is ? saved : at::empty_like(parameter.detach(), at::MemoryFormat::Preserve).copy_(saved);
  }

  void take(const std::string& name, const at::Tensor& saved, const at::Tensor& /*parameter*/,
            std::int64_t& value) const {
    if (saved.dim() != 0 || saved.scalar_type() != at::kLong) fail(fmt::format("{} is no count", quoted_name(name)));
    value = saved.item<std::int64_t>();
  }

  torch::optim::Optimizer& optimizer_;
  const std::string& path_;
  std::map<std::string, at::Tensor> slots_;  // that were not taken yet
  std::vector<std::function<void()>> changes_;
};

}  // namespace

OptimizerState state_of(torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  return with_kind(optimizer,
                   [&](const auto& kind) { return state_of_kind(kind, optimizer, names_of(optimizer, module)); });
}

std::function<void()> prepare_state(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                                    const OptimizerState& state, const std::string& path) {
  return with_kind(optimizer, [&](const auto& kind) {
    const Names names = names_of(optimizer, module);
    return Preparation<std::decay_t<decltype(kind)>>(kind, optimizer, state, path).prepare(names, state);
  });
}

}  // namespace gpipe::detail
