#include "gpipe/model/profiler.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/busy_neighbours.h"
#include "gpipe/model/flop_counter.h"
#include "gpipe/model/layer_meter.h"
#include "gpipe/model/layer_profiler.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/meta_layer.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/model/skip_tracer.h"
#include "gpipe/os/processors.h"

namespace gpipe {
namespace {

using detail::BusyNeighbours;
using detail::LayerBytes;
using detail::LayerMeasure;
using detail::LayerMeter;
using detail::LayerSeconds;
using detail::LayerSource;
using detail::NotedInput;
using detail::ProfilerPosition;
using detail::Sandbox;
using detail::SkipScope;
using detail::SkipTracer;
using detail::TensorUse;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

bool is_on_meta(const MicroBatch& sample) {
  return std::any_of(sample.tensors.begin(), sample.tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined() && tensor.is_meta(); });
}

enum class PassKind {
  kBytes,    // forward and backward; warms up, too
  kSeconds,  // the same, and a backward to the inputs alone
};

struct PassResult {
  std::vector<LayerProfile> layers;    // what is the same in every pass
  std::vector<LayerMeasure> measures;  // by layer, and of the loss if there is one; without outputs
  std::vector<SkipProfile> skips;
};

void check(const ProfileOptions& options) {
  const auto refuse = [](const char* name, auto value, const char* expected) {
    throw InvalidArgument(fmt::format("{} is {}; it must be {}", name, value, expected));
  };
  if (options.repeats < 1) refuse("repeats", options.repeats, "1 or more");
  if (!(options.budget_seconds >= 0)) refuse("budget_seconds", options.budget_seconds, "0 or more");
  if (options.busy_neighbours < 0) refuse("busy_neighbours", options.busy_neighbours, "0 or more");
  check_threads("busy_neighbours", options.busy_neighbours);
  // Below that, counted seconds could overflow.
  const double flops = options.flops_per_second;
  if (!(flops >= 1e-3) || !std::isfinite(flops)) refuse("flops_per_second", flops, "a number, 0.001 or more");
}

at::Tensor checked_loss(const at::Tensor& loss) {
  if (loss.defined() && loss.numel() == 1) return loss;
  throw InvalidArgument("the loss to profile must be a scalar; reduce it, with mean() for example");
}

// One pass over all layers.
class Pass {
 public:
  Pass(const LayerSource& source, const MicroBatch& sample, const ProfileOptions& options, PassKind kind,
       ProfilerPosition& position)
      : source_(source), sample_(sample), options_(options), position_(position), tracer_(source.names) {
    if (kind == PassKind::kBytes && options.count_bytes) meter_.account = std::make_shared<MemoryAccount>("profile");
    meter_.with_input_grad = kind == PassKind::kSeconds;
    meter_.at_backward = [this] { position_.in_backward = true; };
    if (is_on_meta(sample)) {
      counter_.emplace();
      meter_.clock = [this] { return static_cast<double>(counter_->flops()) / options_.flops_per_second; };
    }
  }

  PassResult run() {
    const SkipScope scope(tracer_);
    const at::AutoGradMode grad_mode(true);
    PassResult result;
    Tensors tensors = sample_.tensors;
    for (std::size_t layer = 0; layer < source_.names.size(); ++layer) {
      try {
        result.measures.push_back(run_layer(static_cast<int>(layer), std::move(tensors), result.layers));
      } catch (...) {
        if (tracer_.failed()) tracer_.finish(/*complete=*/false);
        throw;
      }
      tensors = std::move(result.measures.back().outputs);
    }
    result.skips = tracer_.finish(/*complete=*/true);
    if (options_.loss) {
      const auto loss = [&](const Tensors& outputs) { return Tensors{checked_loss(options_.loss(outputs))}; };
      result.measures.push_back(meter_.run(loss, {}, std::move(tensors), {}));
    }
    return result;
  }

 private:
  LayerMeasure run_layer(int index, Tensors tensors, std::vector<LayerProfile>& profiles) {
    position_ = {index, false, NotedInput(tensors)};
    const ChainLayer layer = source_.layer(index);
    const Sandbox sandbox({layer});
    const Tensors parameters = layer.layer.module->parameters();
    LayerProfile profile;
    profile.name = layer.name;
    profile.parameter_bytes = bytes_of(parameters);
    profile.buffer_bytes = bytes_of(layer.layer.module->buffers());
    profile.gradient_bytes = 0;
    for (const at::Tensor& parameter : parameters) {
      if (parameter.requires_grad()) *profile.gradient_bytes += bytes_of({parameter});
    }

    LayerRun run;
    run.seed = options_.seed;
    run.layer = layer.index;
    run.first_sample = sample_.first_sample;
    tracer_.begin_layer(index, tensors);
    const LayerScope scope(run);
    LayerMeasure measure = meter_.run(
        layer.layer.forward, [this] { return tracer_.stashed_now(); }, std::move(tensors), parameters);
    tracer_.end_layer();
    profile.output_bytes = bytes_of(measure.outputs);
    profiles.push_back(std::move(profile));
    return measure;
  }

  const LayerSource& source_;
  const MicroBatch& sample_;
  const ProfileOptions& options_;
  ProfilerPosition& position_;
  SkipTracer tracer_;
  LayerMeter meter_;
  std::optional<FlopCounter> counter_;  // on Meta tensors
};

// Note [Who keeps a boundary tensor]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The tensor between two layers is kept for the backward if either keeps it: ReLU keeps its output, Linear its input.
// Run one by one, each tells for itself. The tensor is counted with the layer that made it, once. A layer that passes
// its input on, as it is or as a view, has not made it: then it counts with the layer before.
void share_out(const std::vector<LayerMeasure>& measures, std::vector<LayerProfile>& profiles) {
  std::vector<bool> next_keeps;
  for (std::size_t index = measures.size(); index-- > 0;) {
    const LayerBytes& bytes = measures[index].bytes;
    LayerProfile& profile = profiles[index];
    std::vector<bool> keeps_input;
    std::int64_t activation = bytes.kept;
    for (const TensorUse& input : bytes.inputs) {
      keeps_input.push_back(input.kept);
      if (input.kept) activation -= input.bytes;
    }
    std::int64_t kept_output = 0;
    for (std::size_t output = 0; output < bytes.outputs.size(); ++output) {
      const TensorUse& use = bytes.outputs[output];
      const bool kept = use.kept || (output < next_keeps.size() && next_keeps[output]);
      if (!kept) continue;
      kept_output += use.bytes;
      if (use.same_input >= 0) {
        keeps_input[use.same_input] = true;
      } else if (!use.kept) {
        activation += use.bytes;
      }
    }
    std::int64_t kept_input = 0;
    for (std::size_t input = 0; input < keeps_input.size(); ++input) {
      if (keeps_input[input]) kept_input += bytes.inputs[input].bytes;
    }
    profile.activation_bytes = std::max<std::int64_t>(activation, 0);
    profile.kept_output_bytes = std::min(kept_output, profile.output_bytes);
    profile.forward_working_bytes = std::max(bytes.forward_working - kept_input, profile.activation_bytes);
    profile.backward_working_bytes = std::max(bytes.backward_working - kept_input, profile.activation_bytes);
    next_keeps = std::move(keeps_input);
  }
  std::int64_t kept_before = 0;  // the micro-batch itself counts nowhere
  for (LayerProfile& profile : profiles) {
    profile.kept_output_bytes = std::min(profile.kept_output_bytes, profile.activation_bytes + kept_before);
    kept_before = profile.kept_output_bytes;
  }
}

// The loss is a part of the last layer.
void merge_loss(std::vector<LayerProfile>& layers) {
  const LayerProfile loss = layers.back();
  layers.pop_back();
  LayerProfile& last = layers.back();
  last.forward_seconds += loss.forward_seconds;
  last.backward_seconds += loss.backward_seconds;
  *last.input_grad_seconds += *loss.input_grad_seconds;
  last.forward_working_bytes =
      std::max(*last.forward_working_bytes, last.activation_bytes + *loss.forward_working_bytes);
  last.backward_working_bytes =
      std::max(*last.backward_working_bytes, last.activation_bytes + *loss.backward_working_bytes);
  last.activation_bytes += loss.activation_bytes;
}

}  // namespace

Profile detail::profile_layers(const LayerSource& source, const MicroBatch& sample, const ProfileOptions& options,
                               ProfilerPosition& position) {
  check(options);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  PassResult bytes = Pass(source, sample, options, PassKind::kBytes, position).run();
  std::vector<LayerProfile> layers = std::move(bytes.layers);
  layers.resize(bytes.measures.size());
  if (options.count_bytes) share_out(bytes.measures, layers);
  for (LayerProfile& layer : layers) {
    if (!layer.forward_working_bytes) layer.forward_working_bytes = layer.activation_bytes;
    if (!layer.backward_working_bytes) layer.backward_working_bytes = layer.activation_bytes;
  }
  std::vector<std::vector<LayerMeasure>> passes;
  const bool counts = is_on_meta(sample);  // then seconds are always the same
  const int repeats = counts ? 1 : options.repeats;
  const BusyNeighbours neighbours(counts ? 0 : options.busy_neighbours);
  for (int pass = 0; pass < repeats && (pass == 0 || elapsed() < options.budget_seconds); ++pass) {
    passes.push_back(Pass(source, sample, options, PassKind::kSeconds, position).run().measures);
  }
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const auto middle = [&](double LayerSeconds::*part) {
      std::vector<double> values;
      for (const auto& measures : passes) values.push_back(measures[layer].seconds.*part);
      return median(std::move(values));
    };
    layers[layer].forward_seconds = middle(&LayerSeconds::forward);
    layers[layer].backward_seconds = middle(&LayerSeconds::backward);
    layers[layer].input_grad_seconds = std::min(middle(&LayerSeconds::input_grad), layers[layer].backward_seconds);
  }
  if (options.loss) merge_loss(layers);
  for (LayerProfile& layer : layers) {
    layer.weight_grad_seconds = layer.backward_seconds - *layer.input_grad_seconds;
  }
  Profile profile;
  profile.layers = std::move(layers);
  profile.skips = std::move(bytes.skips);
  profile.samples_per_micro_batch = static_cast<int>(sample.num_samples);
  return profile;
}

Profile profile(const LayerChain& chain, const Tensors& sample, const ProfileOptions& options) {
  if (chain.size() == 0) throw InvalidArgument("the model has no layers; there is nothing to profile");
  MicroBatch micro_batch = split_batch(sample, /*num_micro_batches=*/1, {}, "sample").front();
  LayerSource source;
  for (int layer = 0; layer < chain.size(); ++layer) source.names.push_back(chain.name(layer));
  const bool on_meta = is_on_meta(micro_batch);
  source.layer = [&chain, &options, on_meta](int layer) {
    return ChainLayer{layer, chain.name(layer),
                      on_meta ? build_on_meta(chain, layer) : chain.build(layer, options.seed)};
  };
  ProfilerPosition position;
  return detail::profile_layers(source, micro_batch, options, position);
}

Profile profile(const LayerChain& chain, const at::Tensor& sample, const ProfileOptions& options) {
  return profile(chain, Tensors{sample}, options);
}

}  // namespace gpipe
