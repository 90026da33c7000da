#include "gpipe/model/deferred_batch_norm.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/functional/batchnorm.h>

#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/plain_values.h"

namespace gpipe::nn {
namespace {

// See Note [Without operations].
std::vector<double> to_doubles(const at::Tensor& tensor) {
  if (const auto* plain = detail::plain_values<const float>(tensor)) return {plain, plain + tensor.numel()};
  const at::Tensor values = tensor.to(at::kCPU, at::kDouble).contiguous();
  return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
}

// Note [Merging statistics]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// Chan, Golub and LeVeque: means and sums of squared deviations of two parts give those of the whole,
//
//   mean = mean_a + (mean_b - mean_a) n_b / n      m2 = m2_a + m2_b + (mean_b - mean_a)^2 n_a n_b / n
//
// A sum of squares would cancel where the mean is large against the deviation.
struct MergedStatistics {
  double count = 0;
  std::vector<double> mean;
  std::vector<double> m2;

  template <typename Value>
  void add(double part_count, const Value* part_mean, const Value* part_variance) {
    const double total = count + part_count;
    for (std::size_t channel = 0; channel < mean.size(); ++channel) {
      const double delta = part_mean[channel] - mean[channel];
      mean[channel] += delta * part_count / total;
      m2[channel] += part_variance[channel] * (part_count - 1) + delta * delta * count * part_count / total;
    }
    count = total;
  }
};

using PendingStatistics = std::map<int, std::vector<BatchStatistics>>;

// See Note [Without operations]. Nothing if not all values are plain.
std::optional<MergedStatistics> merge_plain(const PendingStatistics& pending, std::size_t num_channels) {
  MergedStatistics merged{0, std::vector<double>(num_channels), std::vector<double>(num_channels)};
  for (const auto& [micro_batch, parts] : pending) {
    for (const BatchStatistics& part : parts) {
      const auto* const mean = detail::plain_values<const float>(part.mean);
      const auto* const variance = detail::plain_values<const float>(part.variance);
      if (mean == nullptr || variance == nullptr) return std::nullopt;
      merged.add(static_cast<double>(part.count), mean, variance);
    }
  }
  return merged;
}

MergedStatistics merge(const PendingStatistics& pending, std::size_t num_channels) {
  if (std::optional<MergedStatistics> merged = merge_plain(pending, num_channels)) return *std::move(merged);
  std::vector<at::Tensor> means;
  std::vector<at::Tensor> variances;
  std::vector<std::int64_t> counts;
  for (const auto& [micro_batch, parts] : pending) {
    for (const BatchStatistics& part : parts) {
      means.push_back(part.mean);
      variances.push_back(part.variance);
      counts.push_back(part.count);
    }
  }
  const std::vector<double> mean = to_doubles(at::stack(means));
  const std::vector<double> variance = to_doubles(at::stack(variances));
  MergedStatistics merged{0, std::vector<double>(num_channels), std::vector<double>(num_channels)};
  for (std::size_t part = 0; part < counts.size(); ++part) {
    merged.add(static_cast<double>(counts[part]), &mean[part * num_channels], &variance[part * num_channels]);
  }
  return merged;
}

// As copy_ does.
void write(const at::Tensor& tensor, const std::vector<double>& values) {
  auto* const plain = tensor.is_inference() ? nullptr : detail::plain_values<float>(tensor);
  if (plain == nullptr) {
    tensor.copy_(at::tensor(values, at::kDouble));
    return;
  }
  for (std::size_t index = 0; index < values.size(); ++index) plain[index] = static_cast<float>(values[index]);
  torch::autograd::impl::bump_version(tensor);
}

// As add_(1) does.
void count_up(const at::Tensor& counter) {
  auto* const plain = counter.is_inference() ? nullptr : detail::plain_values<std::int64_t>(counter);
  if (plain == nullptr || counter.dim() != 0) {
    counter.add_(1);
    return;
  }
  ++*plain;
  torch::autograd::impl::bump_version(counter);
}

// running = (1 - factor) running + factor scale values
void move_towards(const at::Tensor& running, const std::vector<double>& values, double scale, double factor) {
  std::vector<double> moved = to_doubles(running);
  for (std::size_t channel = 0; channel < moved.size(); ++channel) {
    moved[channel] = factor * (scale * values[channel]) + (1 - factor) * moved[channel];
  }
  write(running, moved);
}

}  // namespace

template <int D, typename Original, typename Derived>
DeferredBatchNormImplBase<D, Original, Derived>::DeferredBatchNormImplBase(const torch::nn::BatchNormOptions& options_)
    : options(options_) {
  DeferredBatchNormImplBase::reset();
}

template <int D, typename Original, typename Derived>
DeferredBatchNormImplBase<D, Original, Derived>::DeferredBatchNormImplBase(const Original& original)
    : options(original.options) {
  const auto share = [this](const char* name, const at::Tensor& tensor) {
    return this->register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  weight = share("weight", original.weight);
  bias = share("bias", original.bias);
  running_mean = this->register_buffer("running_mean", original.running_mean);
  running_var = this->register_buffer("running_var", original.running_var);
  num_batches_tracked = this->register_buffer("num_batches_tracked", original.num_batches_tracked);
  this->train(original.is_training());
}

template <int D, typename Original, typename Derived>
void DeferredBatchNormImplBase<D, Original, Derived>::reset() {
  const std::int64_t size = options.num_features();
  const bool affine = options.affine();
  const bool tracks = options.track_running_stats();
  weight = this->register_parameter("weight", affine ? torch::ones({size}) : at::Tensor(), affine);
  bias = this->register_parameter("bias", affine ? torch::zeros({size}) : at::Tensor(), affine);
  running_mean = this->register_buffer("running_mean", tracks ? torch::zeros({size}) : at::Tensor());
  running_var = this->register_buffer("running_var", tracks ? torch::ones({size}) : at::Tensor());
  num_batches_tracked =
      this->register_buffer("num_batches_tracked", tracks ? torch::zeros({}, torch::kLong) : at::Tensor());
  pending_.clear();
}

template <int D, typename Original, typename Derived>
at::Tensor DeferredBatchNormImplBase<D, Original, Derived>::normalise(const at::Tensor& input, const at::Tensor& mean,
                                                                      const at::Tensor& variance, double momentum) {
  return torch::nn::functional::batch_norm(input, mean, variance,
                                           torch::nn::functional::BatchNormFuncOptions()
                                               .weight(weight)
                                               .bias(bias)
                                               .training(this->is_training() || !options.track_running_stats())
                                               .momentum(momentum)
                                               .eps(options.eps()));
}

template <int D, typename Original, typename Derived>
at::Tensor DeferredBatchNormImplBase<D, Original, Derived>::forward(const at::Tensor& input) {
  if (input.dim() != D + 2 && !(D == 1 && input.dim() == 2)) {
    throw InvalidArgument(fmt::format("DeferredBatchNorm{}d takes tensors of {} dimensions, got {}", D,
                                      D == 1 ? "2 or 3" : std::to_string(D + 2), input.dim()));
  }
  if (!this->is_training() || !options.track_running_stats()) return normalise(input, running_mean, running_var, 0);
  const LayerRun* run = LayerScope::current();
  if (run == nullptr) return normalise(input, running_mean, running_var, count_batch());
  // With momentum 1, "running" statistics become those of this very input: they come from the kernel that normalises.
  BatchStatistics seen;
  seen.count = input.size(1) > 0 ? input.numel() / input.size(1) : 0;
  seen.mean = at::zeros_like(running_mean);
  seen.variance = at::zeros_like(running_var);
  at::Tensor output = normalise(input, seen.mean, seen.variance, 1);
  if (!run->recomputing && seen.count > 1) {
    if (run->step != step_) end_step();
    step_ = run->step;
    pending_[run->micro_batch].push_back(std::move(seen));
  }
  return output;
}

// Returns the weight of this batch in the running statistics.
template <int D, typename Original, typename Derived>
double DeferredBatchNormImplBase<D, Original, Derived>::count_batch() {
  count_up(num_batches_tracked);
  return options.momentum() ? *options.momentum() : 1 / num_batches_tracked.template item<double>();
}

// A row a part: its micro-batch, its count, the means, the variances. Doubles hold all of them exactly.
template <int D, typename Original, typename Derived>
at::Tensor DeferredBatchNormImplBase<D, Original, Derived>::kept() const {
  std::vector<at::Tensor> rows;
  for (const auto& [micro_batch, parts] : pending_) {
    for (const BatchStatistics& part : parts) {
      const at::Tensor head =
          at::tensor({static_cast<double>(micro_batch), static_cast<double>(part.count)}, at::kDouble);
      rows.push_back(at::cat({head, part.mean.to(at::kCPU, at::kDouble), part.variance.to(at::kCPU, at::kDouble)}));
    }
  }
  return rows.empty() ? at::Tensor() : at::stack(rows);
}

template <int D, typename Original, typename Derived>
void DeferredBatchNormImplBase<D, Original, Derived>::keep(const at::Tensor& of_another) {
  const std::int64_t channels = running_mean.numel();
  for (const at::Tensor& row : of_another.view({-1, 2 + 2 * channels}).unbind(0)) {
    const double* head = row.data_ptr<double>();
    BatchStatistics part;
    part.count = static_cast<std::int64_t>(head[1]);
    part.mean = row.narrow(0, 2, channels).to(running_mean.options());
    part.variance = row.narrow(0, 2 + channels, channels).to(running_var.options());
    pending_[static_cast<int>(head[0])].push_back(std::move(part));
  }
}

template <int D, typename Original, typename Derived>
void DeferredBatchNormImplBase<D, Original, Derived>::end_step() {
  if (pending_.empty()) return;
  const at::NoGradGuard no_grad;
  const MergedStatistics merged = merge(pending_, running_mean.numel());
  pending_.clear();
  const double factor = count_batch();
  move_towards(running_mean, merged.mean, 1, factor);
  move_towards(running_var, merged.m2, 1 / (merged.count - 1), factor);
}

template <int D, typename Original, typename Derived>
void DeferredBatchNormImplBase<D, Original, Derived>::abandon_step() {
  pending_.clear();
}

template <int D, typename Original, typename Derived>
void DeferredBatchNormImplBase<D, Original, Derived>::pretty_print(std::ostream& stream) const {
  stream << fmt::format("gpipe::nn::DeferredBatchNorm{}d({}, eps={}, affine={}, track_running_stats={})", D,
                        options.num_features(), options.eps(), options.affine(), options.track_running_stats());
}

template class DeferredBatchNormImplBase<1, torch::nn::BatchNorm1dImpl, DeferredBatchNorm1dImpl>;
template class DeferredBatchNormImplBase<2, torch::nn::BatchNorm2dImpl, DeferredBatchNorm2dImpl>;
template class DeferredBatchNormImplBase<3, torch::nn::BatchNorm3dImpl, DeferredBatchNorm3dImpl>;

namespace {

using Module = torch::nn::Module;
using torch::nn::AnyModule;
using torch::nn::SequentialImpl;

template <typename... Originals>
bool is_one_of(const Module& module) {
  return ((dynamic_cast<const Originals*>(&module) != nullptr) || ...);
}

bool is_batch_norm(const Module& module) {
  return is_one_of<torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl, torch::nn::BatchNorm3dImpl>(module);
}

// Deferred forms by their originals: a module that occurs several times is replaced by one.
class Converter {
 public:
  // Replaces within `module`, at any depth. With `dry`, only lists what is out of reach.
  void convert_children(Module& module, const std::string& path, bool dry) {
    auto* const sequential = dynamic_cast<SequentialImpl*>(&module);
    std::size_t index = 0;
    for (const auto& child : module.named_children()) {
      const std::string child_path = path.empty() ? child.key() : path + "." + child.key();
      if (!is_batch_norm(*child.value())) {
        convert_children(*child.value(), child_path, dry);
      } else if (sequential == nullptr || !is_exactly_batch_norm(*child.value())) {
        out_of_reach_.push_back(child_path);
      } else if (!dry) {
        AnyModule& slot = *(sequential->begin() + static_cast<std::ptrdiff_t>(index));
        slot = deferred(slot);
        sequential->replace_module(child.key(), slot.ptr());
      }
      ++index;
    }
  }

  // The deferred form of a batch norm, anything else as it is.
  AnyModule deferred(const AnyModule& module) {
    const std::shared_ptr<Module> original = module.ptr();
    const auto found = made_.find(original.get());
    if (found != made_.end()) return found->second;
    AnyModule made = module;
    make<torch::nn::BatchNorm1dImpl, DeferredBatchNorm1dImpl>(*original, made);
    make<torch::nn::BatchNorm2dImpl, DeferredBatchNorm2dImpl>(*original, made);
    make<torch::nn::BatchNorm3dImpl, DeferredBatchNorm3dImpl>(*original, made);
    kept_alive_.push_back(original);
    return made_.emplace(original.get(), std::move(made)).first->second;
  }

  const std::vector<std::string>& out_of_reach() const { return out_of_reach_; }

 private:
  // A class derived from it may have a forward of its own.
  static bool is_exactly_batch_norm(const Module& module) {
    const std::type_info& type = typeid(module);
    return type == typeid(torch::nn::BatchNorm1dImpl) || type == typeid(torch::nn::BatchNorm2dImpl) ||
           type == typeid(torch::nn::BatchNorm3dImpl);
  }

  template <typename Original, typename Deferred>
  static void make(const Module& original, AnyModule& made) {
    const auto* batch_norm = dynamic_cast<const Original*>(&original);
    if (batch_norm != nullptr) made = AnyModule(std::make_shared<Deferred>(*batch_norm));
  }

  std::map<const Module*, AnyModule> made_;
  std::vector<std::shared_ptr<Module>> kept_alive_;  // so that no address is used twice
  std::vector<std::string> out_of_reach_;
};

}  // namespace

torch::nn::Sequential convert_batch_norm(torch::nn::Sequential model) {
  Converter converter;
  converter.convert_children(*model, "", /*dry=*/true);
  if (!converter.out_of_reach().empty()) {
    throw InvalidArgument(
        fmt::format("cannot replace the batch norm {}: only one that stands in a torch::nn::Sequential can be replaced "
                    "from outside; "
                    "let the module that owns it hold a gpipe::nn::DeferredBatchNorm instead",
                    fmt::join(converter.out_of_reach(), ", ")));
  }
  torch::nn::Sequential converted;
  converted->train(model->is_training());  // before it has layers, whose modes are their own
  const auto children = model->named_children();
  std::size_t index = 0;
  for (AnyModule& layer : *model) {
    if (!is_batch_norm(*layer.ptr())) converter.convert_children(*layer.ptr(), children[index].key(), /*dry=*/false);
    converted->push_back(children[index].key(), converter.deferred(layer));
    ++index;
  }
  return converted;
}

}  // namespace gpipe::nn
