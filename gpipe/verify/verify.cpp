#include "gpipe/verify/verify.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/even_share.h"
#include "gpipe/execute/engine/engine.h"
#include "gpipe/execute/record/program_recording.h"
#include "gpipe/recording/likely_cause.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/verify/plain_training.h"

namespace gpipe {
namespace {

using detail::even_share;
using detail::RecordedDifference;
using detail::RecordedPipeline;
using detail::Recording;
using detail::RecordSettings;
using detail::RunRecorder;

// One way to train.
struct Settings {
  int num_stages = 0;  // 0: the plain loop
  std::string schedule;
  Recompute recompute = Recompute::kNever;
};

constexpr const char* kPlainLoop = "a plain loop over the layers";

std::string name_of(const Settings& settings) {
  if (settings.num_stages == 0) return kPlainLoop;
  return fmt::format("{} stage{}, {}, recompute {}", settings.num_stages, settings.num_stages == 1 ? "" : "s",
                     settings.schedule, gpipe::name(settings.recompute));
}

// The values of modules that are shared by all runs.
class SharedValues {
 public:
  explicit SharedValues(const LayerChain& chain) {
    for (int layer = 0; layer < chain.size(); ++layer) {
      if (!chain.is_built(layer)) continue;
      const Layer built = chain.build(layer, 0);
      for (const at::Tensor& parameter : built.module->parameters()) keep(parameter);
      for (const at::Tensor& buffer : built.module->buffers()) keep(buffer);
    }
  }
  ~SharedValues() { put_back(/*with_grads=*/true); }
  SharedValues(const SharedValues&) = delete;
  SharedValues& operator=(const SharedValues&) = delete;

  void put_back(bool with_grads = false) const {
    const at::NoGradGuard no_grad;
    for (const Value& value : values_) {
      value.tensor.copy_(value.copy);
      value.tensor.mutable_grad() = with_grads ? value.grad : at::Tensor();
    }
  }

 private:
  struct Value {
    at::Tensor tensor;
    at::Tensor copy;
    at::Tensor grad;
  };
  void keep(const at::Tensor& tensor) {
    if (tensor.defined()) values_.push_back({tensor, tensor.detach().clone(), tensor.grad()});
  }

  std::vector<Value> values_;
};

class Verifier {
 public:
  Verifier(const std::function<LayerChain()>& make_chain, const VerifyBatch& batch, const PipelineImpl::Loss& loss,
           const VerifyOptions& options)
      : make_chain_(make_chain), batch_(batch), loss_(loss), options_(options), num_layers_(make_chain().size()) {
    if (options.num_steps() < 1) {
      throw InvalidArgument(fmt::format("num_steps is {}; it must be at least 1", options.num_steps()));
    }
  }

  Verification verify() {
    list_runs();
    result_.reference = kPlainLoop;
    reference_ = run({}, recorded());
    result_.findings = detail::findings_in({{reference_}}, kPlainLoop);
    result_.notes = detail::notes_in({{reference_}});
    for (std::size_t index = 0; index < runs_.size(); ++index) {
      if (!compare(runs_[index], /*is_repeat=*/index == 0)) break;
    }
    return std::move(result_);
  }

 private:
  RecordSettings recorded() const {
    RecordSettings settings;
    settings.num_steps = options_.num_steps();
    return settings;
  }

  // The plain loop once more, then everything that the options combine.
  void list_runs() {
    runs_.emplace_back();
    for (const int num_stages : options_.stages()) {
      for (const std::string& schedule : options_.schedules()) {
        const int num_parts = num_stages * find_schedule(schedule, training_schedule_names()).default_chunks;
        if (num_parts > num_layers_) {
          VerifiedRun left_out;
          left_out.name = fmt::format("{} stages, {}", num_stages, schedule);
          left_out.outcome = VerifyOutcome::kNotPossible;
          left_out.note = fmt::format("needs {} layers, and the model has {}", num_parts, num_layers_);
          result_.runs.push_back(left_out);
          continue;
        }
        for (const Recompute recompute : options_.recompute()) runs_.push_back({num_stages, schedule, recompute});
      }
    }
  }

  // False if the runs end with this one.
  bool compare(const Settings& settings, bool is_repeat) {
    VerifiedRun verified;
    verified.name = is_repeat ? fmt::format("{}, again", kPlainLoop) : name_of(settings);
    if (options_.on_progress()) {
      options_.on_progress()(verified.name, ++num_runs_, static_cast<int>(runs_.size()));
    }
    RecordedPipeline other;
    try {
      other = run(settings, recorded());
    } catch (const Error& error) {
      if (settings.num_stages == 0) throw;
      verified.outcome = VerifyOutcome::kFailed;
      verified.note = error.what();
      result_.runs.push_back(verified);
      return true;
    }
    const detail::ComparedCounts counts = count_compared(reference_, other);
    verified.num_steps = other.num_steps();
    verified.num_losses = counts.losses;
    verified.num_crossings = counts.crossings;
    verified.num_gradients = counts.gradients;
    verified.num_buffers = counts.buffers;
    verified.num_weights = counts.weights;
    const std::optional<RecordedDifference> difference = first_difference(reference_, other);
    if (difference) {
      verified.outcome = VerifyOutcome::kDiffers;
      result_.findings.push_back(look_closer(settings, verified.name, is_repeat, *difference, other));
    }
    result_.runs.push_back(verified);
    return !difference;
  }

  // By further runs.
  VerifyFinding look_closer(const Settings& settings, const std::string& name, bool is_repeat,
                            RecordedDifference difference, RecordedPipeline other) {
    if (needs_arrivals(difference)) {
      RecordSettings with_arrivals = recorded();
      with_arrivals.with_arrivals = true;
      const RecordedPipeline expected = run({}, with_arrivals);
      RecordedPipeline closer = run(settings, with_arrivals);
      if (const auto found = first_difference(expected, closer)) {
        difference = *found;
        other = std::move(closer);
      }
    }
    detail::SeenIn seen;
    seen.run = name;
    seen.is_repeat = is_repeat;
    Recording probed;
    if (const std::optional<int> layer = layer_to_probe(difference)) {
      RecordSettings with_probe = recorded();
      with_probe.num_steps = 1;
      with_probe.probed_layer = *layer;
      probed = run({}, with_probe).ranks.front();
      if (!probed.probes.empty()) seen.probe = &probed.probes.front();
    }
    return explain(difference, other, seen);
  }

  PipelineOptions options_for(const Settings& settings) const {
    PipelineOptions options = options_.pipeline();
    options.num_micro_batches(checked_micro_batches())
        .num_stages(std::max(settings.num_stages, 1))
        .custom_schedule(std::nullopt)
        .chunks_per_worker(0)
        .recompute(settings.recompute)
        .recompute_by_stage({})
        .rematerialization({})
        .balance({})
        .peers(no_peers());
    if (settings.num_stages == 0) return options;
    std::vector<int> balance;
    const int num_parts = settings.num_stages * find_schedule(settings.schedule).default_chunks;
    for (int part = 0; part < num_parts; ++part) {
      balance.push_back(static_cast<int>(even_share(num_layers_, part, num_parts).count));
    }
    return options.schedule(settings.schedule).balance(balance);
  }

  // Four times the workers would be another number for each number of stages.
  int checked_micro_batches() const {
    const int count = options_.pipeline().num_micro_batches();
    if (count == 0) throw InvalidArgument("num_micro_batches of the pipeline is 0; verify needs the number");
    return count;
  }

  RecordedPipeline run(const Settings& settings, const RecordSettings& recorded) {
    const LayerChain chain = make_chain_();
    const SharedValues shared(chain);
    Recording recording;
    recording.header.num_stages = std::max(settings.num_stages, 1);
    const auto recorder = std::make_shared<RunRecorder>(recorded, [&recording](Recording added, bool completes_step) {
      const auto move_all = [](auto& from, auto& to) { std::move(from.begin(), from.end(), std::back_inserter(to)); };
      move_all(added.tensors, recording.tensors);
      move_all(added.losses, recording.losses);
      move_all(added.strays, recording.strays);
      move_all(added.probes, recording.probes);
      if (completes_step) recording.num_steps = added.num_steps;
    });
    if (settings.num_stages == 0) {
      detail::PlainTraining plain(chain, options_for(settings), recorder);
      take_steps(plain, plain.parameters(), recorded.num_steps);
      recording.header.layers = layers_of(plain.layers());
    } else {
      Pipeline pipeline(chain, options_for(settings));
      pipeline->engine().set_recorder(recorder);
      take_steps(*pipeline, pipeline->parameters(), recorded.num_steps);
      recording.header.layers = layers_of(pipeline->engine().model().layers());
    }
    return {0, 0, {std::move(recording)}};
  }

  template <typename Training>
  void take_steps(Training& training, const std::vector<at::Tensor>& parameters, int num_steps) const {
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (!parameters.empty()) {
      optimizer = options_.optimizer() ? options_.optimizer()(parameters)
                                       : std::make_unique<torch::optim::SGD>(parameters, kLearningRate);
    }
    for (int step = 0; step < num_steps; ++step) {
      for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      training.train_step(fresh(batch_.inputs), batch_.targets, loss_);
      if (optimizer != nullptr) optimizer->step();
    }
  }

  // A layer may change its input in place, and gradients are to be those of one step.
  static Tensors fresh(const Tensors& tensors) {
    Tensors copies;
    for (const at::Tensor& tensor : tensors) {
      copies.push_back(tensor.defined() ? tensor.detach().clone().requires_grad_(tensor.requires_grad()) : tensor);
    }
    return copies;
  }

  static std::vector<detail::RecordedLayer> layers_of(const std::vector<ChainLayer>& layers) {
    std::vector<detail::RecordedLayer> recorded;
    for (const ChainLayer& layer : layers) recorded.push_back({layer.name, detail::type_name(*layer.layer.module)});
    return recorded;
  }

  static constexpr double kLearningRate = 0.05;

  const std::function<LayerChain()>& make_chain_;
  const VerifyBatch& batch_;
  const PipelineImpl::Loss& loss_;
  const VerifyOptions& options_;
  const int num_layers_;
  std::vector<Settings> runs_;
  int num_runs_ = 0;
  RecordedPipeline reference_;
  Verification result_;
};

}  // namespace

Verification detail::verify_made(const std::function<LayerChain()>& make_chain, const VerifyBatch& batch,
                                 const PipelineImpl::Loss& loss, const VerifyOptions& options) {
  return Verifier(make_chain, batch, loss, options).verify();
}

Verification verify(const LayerChain& chain, const VerifyBatch& batch, const PipelineImpl::Loss& loss,
                    const VerifyOptions& options) {
  return detail::verify_made([&] { return chain; }, batch, loss, options);
}

}  // namespace gpipe
