#include "gpipe/model/profiler.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
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

using detail::check_threads;

using detail::BusyNeighbours;
using detail::LayerBytes;
using detail::LayerMeasure;
using detail::LayerMeter;
using detail::LayerSeconds;
using detail::LayerSource;
using detail::NotedInput;
using detail::ProfilerPosition;
using detail::ProfileSample;
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
  kBytes,          // forward and backward; warms up, too
  kDeferredBytes,  // the same with a split backward
  kSeconds,        // a whole backward again, and one to the inputs alone
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

// Their work is not done in this thread, nor in memory that is counted.
void check_devices(const MicroBatch& sample) {
  for (const at::Tensor& tensor : sample.tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    throw InvalidArgument(fmt::format(
        "the sample to profile is on {}, but processor time and the CPU's memory are measured; profile a copy on the "
        "CPU or the meta device, or give the layers of each stage (balance)",
        tensor.device().str()));
  }
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
    if (kind != PassKind::kSeconds && options.count_bytes) meter_.account = std::make_shared<MemoryAccount>("profile");
    if (kind == PassKind::kDeferredBytes) meter_.deferred_weights = options.deferred_weights;
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

// What a layer keeps, without what other layers count.
struct Share {
  std::int64_t own = 0;
  std::int64_t input = 0;     // kept, and counted with the layers before it
  std::int64_t output = 0;    // kept, by it or by the next one
  std::vector<bool> outputs;  // which of them
};

// Note [Who keeps a boundary tensor]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The tensor between two layers is kept for the backward if either keeps it: ReLU keeps its output, Linear its input.
// Run one by one, each tells for itself. The tensor is counted with the layer that made it, once. A layer that passes
// its input on, as it is or as a view, has not made it: then it counts with the layer before. The same goes for what is
// kept from an input gradient to its weight gradient.
std::vector<Share> share_out(const std::vector<LayerMeasure>& measures, const std::vector<LayerProfile>& profiles) {
  std::vector<Share> shares(measures.size());
  std::vector<bool> next_keeps;
  for (std::size_t index = measures.size(); index-- > 0;) {
    const LayerBytes& bytes = measures[index].bytes;
    Share& share = shares[index];
    std::vector<bool> keeps_input;
    share.own = bytes.kept;
    for (const TensorUse& input : bytes.inputs) {
      keeps_input.push_back(input.kept);
      if (input.kept) share.own -= input.bytes;
    }
    for (std::size_t output = 0; output < bytes.outputs.size(); ++output) {
      const TensorUse& use = bytes.outputs[output];
      share.outputs.push_back(use.kept || (output < next_keeps.size() && next_keeps[output]));
      if (!share.outputs.back()) continue;
      share.output += use.bytes;
      if (use.same_input >= 0) {
        keeps_input[use.same_input] = true;
      } else if (!use.kept) {
        share.own += use.bytes;
      }
    }
    for (std::size_t input = 0; input < keeps_input.size(); ++input) {
      if (keeps_input[input]) share.input += bytes.inputs[input].bytes;
    }
    share.own = std::max<std::int64_t>(share.own, 0);
    next_keeps = std::move(keeps_input);
  }
  std::int64_t kept_before = 0;  // the micro-batch itself counts nowhere
  for (std::size_t index = 0; index < shares.size(); ++index) {
    Share& share = shares[index];
    share.output = std::min({share.output, profiles[index].output_bytes, share.own + kept_before});
    kept_before = share.output;
  }
  return shares;
}

void set_kept_bytes(const std::vector<LayerMeasure>& measures, std::vector<LayerProfile>& profiles) {
  const std::vector<Share> shares = share_out(measures, profiles);
  for (std::size_t index = 0; index < profiles.size(); ++index) {
    const LayerBytes& bytes = measures[index].bytes;
    const Share& share = shares[index];
    LayerProfile& profile = profiles[index];
    profile.activation_bytes = share.own;
    profile.kept_output_bytes = share.output;
    profile.forward_working_bytes = std::max(bytes.forward_working - share.input, share.own);
    profile.backward_working_bytes = std::max(bytes.backward_working - share.input, share.own);
  }
}

// `kept` was measured with a whole backward, `deferred` with a split one.
void set_deferred_bytes(const std::vector<LayerMeasure>& kept, const std::vector<LayerMeasure>& deferred,
                        std::vector<LayerProfile>& profiles) {
  const std::vector<Share> kept_shares = share_out(kept, profiles);
  const std::vector<Share> shares = share_out(deferred, profiles);
  for (std::size_t index = 0; index < profiles.size(); ++index) {
    const LayerBytes& bytes = deferred[index].bytes;
    const Share& share = shares[index];
    LayerProfile& profile = profiles[index];
    profile.deferred_bytes = share.own;
    profile.deferred_output_bytes = share.output;
    profile.weight_grad_working_bytes = std::max(bytes.backward_working - share.input, share.own);
    // Outputs that only the next layer has deferred were not there when this one was run by itself.
    std::int64_t input_grad_working = bytes.input_grad_working - kept_shares[index].input;
    for (std::size_t output = 0; output < bytes.outputs.size(); ++output) {
      const bool was_there = kept[index].bytes.outputs[output].kept || bytes.outputs[output].same_input >= 0;
      if (share.outputs[output] && !was_there) input_grad_working += bytes.outputs[output].bytes;
    }
    profile.input_grad_working_bytes = std::max(input_grad_working, profile.activation_bytes);
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
  if (last.deferred_bytes) {
    last.input_grad_working_bytes =
        std::max(*last.input_grad_working_bytes, last.activation_bytes + *loss.input_grad_working_bytes);
    last.weight_grad_working_bytes =
        std::max(*last.weight_grad_working_bytes, *last.deferred_bytes + *loss.weight_grad_working_bytes);
    *last.deferred_bytes += *loss.deferred_bytes;
  }
  last.activation_bytes += loss.activation_bytes;
}

// The seconds of a layer, or the loss, in each pass.
using PassSeconds = std::vector<std::vector<LayerMeasure>>;

double median_of(const PassSeconds& passes, std::size_t layer, double LayerSeconds::*part) {
  std::vector<double> values;
  for (const auto& measures : passes) values.push_back(measures[layer].seconds.*part);
  return median(std::move(values));
}

// The line through both measures, where there are no rows.
double fixed_of(double seconds, double rows, double seconds_of_part, double rows_of_part) {
  const double fixed = (seconds_of_part * rows - seconds * rows_of_part) / (rows - rows_of_part);
  return std::clamp(fixed, 0.0, seconds);
}

// The passes over a part of the sample, without the loss.
class PartPasses {
 public:
  PartPasses(const LayerSource& source, const ProfileSample& sample, const ProfileOptions& options,
             ProfilerPosition& position)
      : source_(source), sample_(sample), options_(options), position_(position) {
    options_.loss = {};
    if (!sample.part) return;
    try {
      run();  // warms up
      works_ = true;
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) who trains it on the whole need not know
    }
    passes_.clear();
  }

  void run_if_works() {
    if (works_) run();
  }

  void set_fixed_seconds(std::vector<LayerProfile>& layers) const {
    if (!works_) return;
    const auto rows = static_cast<double>(sample_.whole.num_samples);
    const auto rows_of_part = static_cast<double>(sample_.part->num_samples);
    for (std::size_t layer = 0; layer < source_.names.size(); ++layer) {
      const auto fixed = [&](double seconds, double LayerSeconds::*part) {
        return fixed_of(seconds, rows, median_of(passes_, layer, part), rows_of_part);
      };
      layers[layer].fixed_forward_seconds = fixed(layers[layer].forward_seconds, &LayerSeconds::forward);
      layers[layer].fixed_backward_seconds = fixed(layers[layer].backward_seconds, &LayerSeconds::backward);
    }
  }

 private:
  void run() {
    passes_.push_back(Pass(source_, *sample_.part, options_, PassKind::kSeconds, position_).run().measures);
  }

  const LayerSource& source_;
  const ProfileSample& sample_;
  ProfileOptions options_;
  ProfilerPosition& position_;
  PassSeconds passes_;
  bool works_ = false;
};

}  // namespace

ProfileSample detail::make_profile_sample(const MicroBatch& whole, const std::vector<int>& replicated,
                                          const ProfileOptions& options) {
  if (!options.fixed_seconds) return {whole, std::nullopt};
  if (whole.num_samples < 2) {
    throw InvalidArgument(
        "fixed_seconds are told by a half of the sample, which has 1 row; give it 2 or more, or leave fixed_seconds "
        "out");
  }
  MicroBatch part = split_batch(whole.tensors, /*num_micro_batches=*/2, replicated, "sample").back();
  part.first_sample += whole.first_sample;
  return {whole, std::move(part)};
}

Profile detail::profile_layers(const LayerSource& source, const ProfileSample& profiled, const ProfileOptions& options,
                               ProfilerPosition& position) {
  check(options);
  const MicroBatch& sample = profiled.whole;
  check_devices(sample);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  PassResult bytes = Pass(source, sample, options, PassKind::kBytes, position).run();
  std::vector<LayerProfile> layers = std::move(bytes.layers);
  layers.resize(bytes.measures.size());
  if (options.count_bytes) {
    set_kept_bytes(bytes.measures, layers);
    const PassResult deferred = Pass(source, sample, options, PassKind::kDeferredBytes, position).run();
    set_deferred_bytes(bytes.measures, deferred.measures, layers);
  }
  for (LayerProfile& layer : layers) {
    if (!layer.forward_working_bytes) layer.forward_working_bytes = layer.activation_bytes;
    if (!layer.backward_working_bytes) layer.backward_working_bytes = layer.activation_bytes;
  }
  PartPasses of_part(source, profiled, options, position);
  PassSeconds passes;
  const bool counts = is_on_meta(sample);  // then seconds are always the same
  const int repeats = counts ? 1 : options.repeats;
  const BusyNeighbours neighbours(counts ? 0 : options.busy_neighbours);
  for (int pass = 0; pass < repeats && (pass == 0 || elapsed() < options.budget_seconds); ++pass) {
    passes.push_back(Pass(source, sample, options, PassKind::kSeconds, position).run().measures);
    of_part.run_if_works();
  }
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const auto middle = [&](double LayerSeconds::*part) { return median_of(passes, layer, part); };
    layers[layer].forward_seconds = middle(&LayerSeconds::forward);
    layers[layer].backward_seconds = middle(&LayerSeconds::backward);
    layers[layer].input_grad_seconds = std::min(middle(&LayerSeconds::input_grad), layers[layer].backward_seconds);
  }
  of_part.set_fixed_seconds(layers);
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
  const MicroBatch micro_batch = split_batch(sample, /*num_micro_batches=*/1, {}, "sample").front();
  LayerSource source;
  for (int layer = 0; layer < chain.size(); ++layer) source.names.push_back(chain.name(layer));
  const bool on_meta = is_on_meta(micro_batch);
  source.layer = [&chain, &options, on_meta](int layer) {
    return ChainLayer{layer, chain.name(layer),
                      on_meta ? build_on_meta(chain, layer) : chain.build(layer, options.seed)};
  };
  ProfilerPosition position;
  return detail::profile_layers(source, detail::make_profile_sample(micro_batch, {}, options), options, position);
}

Profile profile(const LayerChain& chain, const at::Tensor& sample, const ProfileOptions& options) {
  return profile(chain, Tensors{sample}, options);
}

}  // namespace gpipe
