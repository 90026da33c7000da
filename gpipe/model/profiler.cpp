#include "gpipe/model/profiler.h"

#include <fmt/format.h>
#include <torch/autograd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <string>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/model/skip.h"

namespace gpipe {
namespace {

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

std::int64_t bytes_of(const Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
  return bytes;
}

// The tensor as the input of a layer whose backward is run by itself.
at::Tensor as_input(const at::Tensor& tensor) {
  if (!tensor.defined() || !at::GradMode::is_enabled()) return tensor;
  return tensor.detach()
      .requires_grad_(tensor.requires_grad())
      .clone();  // a copy, because the layer may change it in place
}

// Finds out who stashes and who pops what, and goes on where a name is wrong, so that all that are wrong come to light.
class TracingStore : public SkipStore {
 public:
  explicit TracingStore(const std::vector<ChainLayer>& layers) : layers_(layers) {}

  void begin_layer(int layer, const Tensors& inputs) {
    layer_ = layer;
    stand_in_ = inputs.empty() ? at::Tensor() : inputs.front();
    stashed_now_.clear();
    popped_now_.clear();
  }

  void put(const std::string& name, Stashed stashed) override {
    const auto [found, is_new] = uses_.try_emplace(name, Use{layer_, -1, {}});
    if (!is_new) {
      violation("\"{}\" is stashed by {} and again by {}", name, describe(found->second.stash_layer), describe(layer_));
    }
    if (stashed.tensor.defined()) stashed_now_.push_back(stashed.tensor);
    found->second.stashed = std::move(stashed);
  }

  Stashed take(const std::string& name) override {
    const auto found = uses_.find(name);
    if (found == uses_.end()) {
      violation("\"{}\" is popped by {}, but not stashed before", name, describe(layer_));
      return {stand_in_, stand_in_.defined() ? version_of(stand_in_) : 0};
    }
    Use& use = found->second;
    if (use.pop_layer >= 0) {
      violation("\"{}\" is popped by {} and again by {}", name, describe(use.pop_layer), describe(layer_));
    }
    use.pop_layer = layer_;
    if (!use.stashed.tensor.defined()) return {};
    if (version_of(use.stashed.tensor) != use.stashed.version) return use.stashed;  // `pop` says what is wrong
    const at::Tensor popped = as_input(use.stashed.tensor);
    popped_now_.push_back(popped);
    return {popped, version_of(popped)};
  }

  // Of the layer at work.
  const Tensors& stashed_now() const { return stashed_now_; }
  const Tensors& popped_now() const { return popped_now_; }

  bool failed() const { return !violations_.empty(); }
  // Throws if there is any violation.
  std::vector<SkipProfile> finish(bool complete) {
    for (const auto& [name, use] : uses_) {
      if (complete && use.pop_layer < 0) {
        violations_.push_back(
            fmt::format("\"{}\" is stashed by {}, but never popped", name, describe(use.stash_layer)));
      }
    }
    if (failed()) {
      std::string text =
          fmt::format("the model's skip connections do not fit together ({} found):", violations_.size());
      for (const std::string& violation : violations_) text += "\n  " + violation;
      if (!complete) text += fmt::format("\n  the layers behind {} could not be checked", describe(layer_));
      throw SkipError(text);
    }
    std::vector<SkipProfile> skips;
    for (const auto& [name, use] : uses_) {
      skips.push_back({name, use.stash_layer, use.pop_layer, bytes_of({use.stashed.tensor})});
    }
    return skips;
  }

 private:
  struct Use {
    int stash_layer;
    int pop_layer;
    Stashed stashed;
  };

  std::string describe(int layer) const { return fmt::format("layer {} ({})", layer, layers_[layer].name); }
  template <typename... Args>
  void violation(fmt::format_string<Args...> form, Args&&... args) {
    violations_.push_back(fmt::format(form, std::forward<Args>(args)...));
  }

  const std::vector<ChainLayer>& layers_;
  int layer_ = 0;
  at::Tensor stand_in_;
  std::map<std::string, Use> uses_;
  Tensors stashed_now_;
  Tensors popped_now_;
  std::vector<std::string> violations_;
};

// Keeps those that take part in a backward.
Tensors differentiable(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.requires_grad()) result.push_back(tensor);
  }
  return result;
}

void run_backward(const ChainLayer& layer, const Tensors& inputs, const Tensors& outputs, const TracingStore& store) {
  Tensors wanted = differentiable(inputs);
  for (const at::Tensor& tensor : differentiable(store.popped_now())) wanted.push_back(tensor);
  for (const at::Tensor& tensor : differentiable(layer.layer.module->parameters())) wanted.push_back(tensor);
  Tensors roots = differentiable(outputs);
  for (const at::Tensor& tensor : differentiable(store.stashed_now())) roots.push_back(tensor);
  if (roots.empty() || wanted.empty()) return;
  Tensors grads;
  for (const at::Tensor& root : roots) grads.push_back(at::ones_like(root));
  torch::autograd::grad(roots, wanted, grads, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
}

struct Seconds {
  double forward = 0;
  double backward = 0;
};

// One pass over all layers.
class Pass {
 public:
  Pass(const std::vector<ChainLayer>& layers, const MicroBatch& sample, const ProfilerOptions& options,
       ProfilerPosition& position)
      : layers_(layers), sample_(sample), options_(options), position_(position), store_(layers) {}

  std::vector<SkipProfile> run(std::vector<LayerProfile>& profiles, std::vector<Seconds>& seconds) {
    const SkipScope scope(store_);
    const at::AutoGradMode grad_mode(options_.with_seconds);
    Tensors tensors;
    for (const at::Tensor& tensor : sample_.tensors) {
      tensors.push_back(tensor.defined() ? tensor.clone() : tensor);  // the first layer may change it in place
    }
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      try {
        tensors = run_layer(static_cast<int>(layer), std::move(tensors), seconds[layer], profiles[layer]);
      } catch (...) {
        if (store_.failed()) store_.finish(/*complete=*/false);
        throw;
      }
      profiles[layer].output_bytes = bytes_of(tensors);
    }
    return store_.finish(/*complete=*/true);
  }

 private:
  Tensors run_layer(int index, Tensors tensors, Seconds& seconds, LayerProfile& profile) {
    position_ = {index, false, Given(tensors)};
    const ChainLayer& layer = layers_[index];
    LayerRun run;
    run.seed = options_.seed;
    run.layer = layer.index;
    run.first_sample = sample_.first_sample;
    for (at::Tensor& tensor : tensors) tensor = as_input(tensor);
    const Tensors inputs = tensors;
    store_.begin_layer(index, inputs);
    const LayerScope scope(run);
    const MemoryScope memory(account_);
    const std::int64_t live_before = account_ != nullptr ? account_->live_bytes() : 0;
    const double start = thread_seconds();
    Tensors outputs = layer.layer.forward(std::move(tensors));
    const double middle = thread_seconds();
    seconds.forward = middle - start;
    if (account_ != nullptr) profile.activation_bytes = account_->live_bytes() - live_before;
    position_.in_backward = true;
    if (options_.with_seconds) run_backward(layer, inputs, outputs, store_);
    seconds.backward = thread_seconds() - middle;
    return outputs;
  }

  const std::vector<ChainLayer>& layers_;
  const MicroBatch& sample_;
  const ProfilerOptions& options_;
  ProfilerPosition& position_;
  TracingStore store_;
  const std::shared_ptr<MemoryAccount> account_ =
      options_.with_activations ? std::make_shared<MemoryAccount>("profile") : nullptr;
};

}  // namespace

Profile profile_layers(const std::vector<ChainLayer>& layers, const MicroBatch& sample, const ProfilerOptions& options,
                       ProfilerPosition& position) {
  const Sandbox sandbox(layers);
  Profile profile;
  for (const ChainLayer& layer : layers) {
    LayerProfile entry;
    entry.name = layer.name;
    entry.parameter_bytes = bytes_of(layer.layer.module->parameters());
    profile.layers.push_back(entry);
  }
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::vector<std::vector<Seconds>> measured;
  const int passes = options.with_seconds ? 1 + options.repeats : 1;
  for (int pass = 0; pass < passes && (pass < 2 || elapsed() < options.budget_seconds); ++pass) {
    std::vector<Seconds> seconds(layers.size());
    profile.skips = Pass(layers, sample, options, position).run(profile.layers, seconds);
    if (pass > 0) measured.push_back(std::move(seconds));
  }
  for (std::size_t layer = 0; layer < layers.size() && !measured.empty(); ++layer) {
    std::vector<double> forward;
    std::vector<double> backward;
    for (const auto& seconds : measured) {
      forward.push_back(seconds[layer].forward);
      backward.push_back(seconds[layer].backward);
    }
    profile.layers[layer].forward_seconds = median(std::move(forward));
    profile.layers[layer].backward_seconds = median(std::move(backward));
  }
  return profile;
}

}  // namespace gpipe
