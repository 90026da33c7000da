#include "gpipe/model/deferred_batch_norm.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/functional/batchnorm.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/plain_values.h"

namespace gpipe::detail {
namespace {

constexpr std::size_t kHeadOfRow = 2;  // micro-batch and count

// See Note [Without operations].
template <typename Value>
bool append_plain(std::vector<double>& values, const at::Tensor& tensor) {
  const auto* const plain = plain_values<const Value>(tensor);
  if (plain != nullptr) values.insert(values.end(), plain, plain + tensor.numel());
  return plain != nullptr;
}

void append_values(std::vector<double>& values, const at::Tensor& tensor) {
  if (append_plain<float>(values, tensor) || append_plain<double>(values, tensor)) return;
  append_plain<double>(values, tensor.to(at::kCPU, at::kDouble).contiguous());
}

// Note [Merging statistics]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// Chan, Golub and LeVeque: means and sums of squared deviations of two parts give those of the whole,
//
//   mean = mean_a + (mean_b - mean_a) n_b / n      m2 = m2_a + m2_b + (mean_b - mean_a)^2 n_a n_b / n
//
// A sum of squares would cancel where the mean is large against the deviation.
void merge_row(const double* row, PendingStatistics::Merged& merged) {
  const std::size_t num_channels = merged.mean.size();
  const double count = row[1];
  const double* const mean = row + kHeadOfRow;
  const double* const variance = mean + num_channels;
  const double total = merged.count + count;
  for (std::size_t channel = 0; channel < num_channels; ++channel) {
    const double delta = mean[channel] - merged.mean[channel];
    merged.mean[channel] += delta * count / total;
    merged.m2[channel] += variance[channel] * (count - 1) + delta * delta * merged.count * count / total;
  }
  merged.count = total;
}

}  // namespace

void PendingStatistics::clear() {
  rows_.clear();
  unread_.clear();
}

void PendingStatistics::add(int micro_batch, std::int64_t count, at::Tensor mean, at::Tensor variance) {
  if (mean.is_meta()) return;  // it has no numbers
  if (!mean.device().is_cpu()) {
    unread_.push_back({micro_batch, count, std::move(mean), std::move(variance)});
    return;
  }
  rows_.push_back(micro_batch);
  rows_.push_back(static_cast<double>(count));
  append_values(rows_, mean);
  append_values(rows_, variance);
}

void PendingStatistics::read() {
  if (unread_.empty()) return;
  std::vector<at::Tensor> statistics;
  for (const OnDevice& part : unread_) statistics.push_back(at::cat({part.mean, part.variance}));
  const at::Tensor values = at::stack(statistics).to(at::kCPU, at::kDouble);
  for (std::size_t index = 0; index < unread_.size(); ++index) {
    rows_.push_back(unread_[index].micro_batch);
    rows_.push_back(static_cast<double>(unread_[index].count));
    append_values(rows_, values[static_cast<std::int64_t>(index)]);
  }
  unread_.clear();
}

at::Tensor PendingStatistics::rows(std::int64_t num_channels) const {
  if (empty()) return {};
  PendingStatistics read = *this;
  read.read();
  return at::tensor(read.rows_, at::kDouble).view({-1, static_cast<std::int64_t>(kHeadOfRow) + 2 * num_channels});
}

void PendingStatistics::add_rows(const at::Tensor& rows) { append_values(rows_, rows); }

PendingStatistics::Merged PendingStatistics::merge(std::size_t num_channels) {
  read();
  const std::size_t length = kHeadOfRow + 2 * num_channels;
  std::vector<const double*> rows;
  for (std::size_t begin = 0; begin < rows_.size(); begin += length) rows.push_back(&rows_[begin]);
  std::stable_sort(rows.begin(), rows.end(), [](const double* a, const double* b) { return a[0] < b[0]; });
  Merged merged{0, std::vector<double>(num_channels), std::vector<double>(num_channels)};
  for (const double* row : rows) merge_row(row, merged);
  return merged;
}

}  // namespace gpipe::detail

namespace gpipe::nn {
namespace {

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
  std::vector<double> moved;
  detail::append_values(moved, running);
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
  const std::int64_t count = input.size(1) > 0 ? input.numel() / input.size(1) : 0;
  at::Tensor mean = at::zeros_like(running_mean);
  at::Tensor variance = at::zeros_like(running_var);
  at::Tensor output = normalise(input, mean, variance, 1);
  if (!run->recomputing && count > 1) {
    if (run->step != step_) end_step();
    step_ = run->step;
    pending_.add(run->micro_batch, count, std::move(mean), std::move(variance));
  }
  return output;
}

// Returns the weight of this batch in the running statistics.
template <int D, typename Original, typename Derived>
double DeferredBatchNormImplBase<D, Original, Derived>::count_batch() {
  count_up(num_batches_tracked);
  return options.momentum() ? *options.momentum() : 1 / num_batches_tracked.template item<double>();
}

template <int D, typename Original, typename Derived>
at::Tensor DeferredBatchNormImplBase<D, Original, Derived>::kept() const {
  return pending_.rows(running_mean.numel());
}

template <int D, typename Original, typename Derived>
void DeferredBatchNormImplBase<D, Original, Derived>::keep(const at::Tensor& of_another) {
  pending_.add_rows(of_another);
}

template <int D, typename Original, typename Derived>
void DeferredBatchNormImplBase<D, Original, Derived>::end_step() {
  if (pending_.empty()) return;
  const at::NoGradGuard no_grad;
  const detail::PendingStatistics::Merged merged = pending_.merge(static_cast<std::size_t>(running_mean.numel()));
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
