// GradientReducer: adds up the gradients of all replicas of a stage, while the rest of the backward goes on.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/group/gradient_sum.h"
#include "gpipe/execute/group/replicas.h"
#include "gpipe/transport/stage_stream.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {
namespace {

// Large enough that messages cost little, small enough that the first one leaves early.
constexpr std::int64_t kBucketBytes = 4 << 20;

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

bool is_unchanged(const ReducedParameter& one, const ReducedParameter& other) {
  return one.tensor.is_same(other.tensor) && one.tensor.scalar_type() == other.tensor.scalar_type() &&
         one.stage == other.stage && one.is_late == other.is_late;
}

struct Bucket {
  std::vector<std::size_t> parameters;
  std::size_t num_missing = 0;  // of those, in this backward
};

// What the hooks see.
struct Progress {
  std::mutex mutex;  // of everything below
  std::condition_variable changed;
  std::set<int> in_last_backward;       // stages
  std::vector<int> stage_of_parameter;  //
  std::vector<int> num_accumulated;     // by parameter, in the last backward of its stage
  std::vector<std::size_t> bucket_of;   // by parameter; kNone: it is final at the end
  std::vector<Bucket> buckets;          // in the order in which they are added up
  bool is_over = false;                 // the backward: all are final
  bool is_abandoned = false;            //
  bool is_on_its_way(std::size_t bucket) const { return is_over || buckets[bucket].num_missing == 0; }

  void accumulated(std::size_t parameter) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (parameter >= stage_of_parameter.size()) return;
      if (in_last_backward.count(stage_of_parameter[parameter]) == 0) return;
      if (num_accumulated[parameter]++ > 0 || bucket_of[parameter] == kNone) return;
      if (--buckets[bucket_of[parameter]].num_missing > 0) return;
    }
    changed.notify_all();
  }
};

class Hook : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::shared_ptr<Progress> progress, std::shared_ptr<std::size_t> parameter)
      : progress_(std::move(progress)), parameter_(std::move(parameter)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    progress_->accumulated(*parameter_);
    return outputs;
  }

 private:
  const std::shared_ptr<Progress> progress_;  // the graph may outlive the reducer
  const std::shared_ptr<std::size_t> parameter_;
};

// Note [Gradients of all replicas]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A gradient is final when the last backward of its stage has accumulated it: a hook behind the accumulation says so.
// Final gradients are put into buckets, in the reverse order of the layers, and a thread adds up one bucket after the
// other. The first backward only finds out which gradients are accumulated exactly once in that last backward; all
// others, and those of tied weights, are final at its end only.
//
// What the parameters had before counts once: the first replica keeps it, the others set theirs to zero.
class GradientReducer : public GradientSum {
 public:
  explicit GradientReducer(Replicas& replicas) : replicas_(replicas) {}
  ~GradientReducer() override { GradientReducer::abandon(); }
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  void begin(const std::function<std::vector<ReducedParameter>()>& make_parameters) override {
    join();
    std::vector<ReducedParameter> parameters = make_parameters();
    const bool is_the_same =
        std::equal(parameters.begin(), parameters.end(), parameters_.begin(), parameters_.end(), is_unchanged);
    parameters_ = std::move(parameters);
    watch();
    {
      Progress& progress = *progress_;
      const std::lock_guard<std::mutex> lock(progress.mutex);
      if (!is_the_same) {
        is_known_ = false;
        progress.buckets.clear();
        progress.stage_of_parameter.clear();
        for (const ReducedParameter& parameter : parameters_) progress.stage_of_parameter.push_back(parameter.stage);
        progress.bucket_of.assign(parameters_.size(), kNone);
      }
      progress.in_last_backward.clear();
      progress.num_accumulated.assign(parameters_.size(), 0);
      progress.is_over = false;
      progress.is_abandoned = false;
      for (Bucket& bucket : progress.buckets) {
        const bool is_late = progress.bucket_of[bucket.parameters.front()] == kNone;  // final at the end only
        bucket.num_missing = bucket.parameters.size() + (is_late ? 1 : 0);
      }
    }
    // On a device they are only known to be there when the backward is over, and the caller's stream has waited for it.
    const bool on_cpu = std::all_of(parameters_.begin(), parameters_.end(),
                                    [](const ReducedParameter& parameter) { return parameter.tensor.is_cpu(); });
    if (is_known_ && on_cpu) start();
  }

  void begin_first_backward(int stage) override {
    if (replicas_.own() == 0) return;
    for (const ReducedParameter& parameter : parameters_) {
      at::Tensor& grad = parameter.tensor.mutable_grad();
      if (parameter.stage == stage && grad.defined()) grad.zero_();
    }
  }

  void begin_last_backward(int stage) override {
    const std::lock_guard<std::mutex> lock(progress_->mutex);
    progress_->in_last_backward.insert(stage);
  }

  void finish() override {
    Progress& progress = *progress_;
    {
      const std::lock_guard<std::mutex> lock(progress.mutex);
      progress.is_over = true;
    }
    progress.changed.notify_all();
    if (thread_.joinable()) {
      join();
      if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
      for (std::size_t index = 0; index < parameters_.size(); ++index) {
        if (progress.bucket_of[index] == kNone || progress.num_accumulated[index] <= 1) continue;
        throw Error(fmt::format(
            "the gradient of a parameter of stage {}, of the shape [{}], was accumulated {} times in the last "
            "backward, "
            "but once in the first step, and may have been sent too early; use a layer the same way in every step",
            parameters_[index].stage, fmt::join(parameters_[index].tensor.sizes(), ", "),
            progress.num_accumulated[index]));
      }
      return;
    }
    if (!is_known_) make_buckets();
    reduce_all();
  }

  void abandon() override {
    {
      const std::lock_guard<std::mutex> lock(progress_->mutex);
      progress_->is_abandoned = true;
    }
    progress_->changed.notify_all();
    if (thread_.joinable()) replicas_.cancel();
    join();
    error_ = nullptr;
  }

 private:
  // A cast gives a parameter another accumulation.
  void watch() {
    const at::AutoGradMode grad_mode(true);
    for (auto& [node, parameter] : hooked_) *parameter = kNone;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      const auto node = torch::autograd::impl::grad_accumulator(parameters_[index].tensor);
      if (node == nullptr) continue;
      std::shared_ptr<std::size_t>& parameter = hooked_[node];
      if (parameter == nullptr) {
        parameter = std::make_shared<std::size_t>(index);
        node->add_post_hook(std::make_unique<Hook>(progress_, parameter));
      }
      *parameter = index;
    }
  }

  // Which gradients are accumulated once, on all replicas.
  void make_buckets() {
    Progress& progress = *progress_;
    std::vector<bool> once;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      once.push_back(!parameters_[index].is_late && progress.num_accumulated[index] == 1);
    }
    WireRecord own;
    own.add("once", once);
    for (const WireRecord& given : replicas_.gather(own)) {
      WireReader reader(given, "these are not gradients of a replica");
      reader.check_num_rows({"once"}, once.size());
      const std::vector<bool> of_replica = reader.flags("once");
      reader.finish();
      for (std::size_t index = 0; index < once.size(); ++index) once[index] = once[index] && of_replica[index];
    }
    for (const bool is_late : {false, true}) {
      std::int64_t bytes = kBucketBytes;
      at::ScalarType type = at::kFloat;
      for (std::size_t index = parameters_.size(); index-- > 0;) {
        if (once[index] == is_late) continue;
        const at::Tensor& tensor = parameters_[index].tensor;
        if (bytes >= kBucketBytes || tensor.scalar_type() != type) {
          progress.buckets.emplace_back();
          bytes = 0;
        }
        type = tensor.scalar_type();
        bytes += static_cast<std::int64_t>(tensor.nbytes());
        progress.buckets.back().parameters.push_back(index);
        progress.bucket_of[index] = is_late ? kNone : progress.buckets.size() - 1;
      }
    }
    is_known_ = true;
  }

  void start() {
    thread_ = std::thread([this] {
      at::get_num_threads();
      omp_set_num_threads(1);
      try {
        reduce_all();
      } catch (...) {
        error_ = std::current_exception();
      }
    });
  }

  void reduce_all() {
    Progress& progress = *progress_;
    for (std::size_t index = 0; index < progress.buckets.size(); ++index) {
      {
        std::unique_lock<std::mutex> lock(progress.mutex);
        progress.changed.wait(lock, [&] { return progress.is_on_its_way(index) || progress.is_abandoned; });
        if (progress.is_abandoned) return;
      }
      reduce(progress.buckets[index]);
    }
  }

  // Behind the gradients, a number each: how many replicas have one.
  void reduce(const Bucket& bucket) {
    const at::NoGradGuard no_grad;
    Tensors pieces;
    const at::TensorOptions options(parameters_[bucket.parameters.front()].tensor.scalar_type());
    at::Tensor counts = at::zeros({static_cast<std::int64_t>(bucket.parameters.size())}, options);
    for (std::size_t place = 0; place < bucket.parameters.size(); ++place) {
      const at::Tensor& parameter = parameters_[bucket.parameters[place]].tensor;
      const at::Tensor& grad = parameter.grad();
      if (grad.defined() && grad.layout() != at::kStrided) {
        throw InvalidArgument("a gradient is sparse; replicas add up dense ones only");
      }
      pieces.push_back(grad.defined() ? on_host(grad).reshape({-1}) : at::zeros({parameter.numel()}, options));
      if (grad.defined()) counts[static_cast<std::int64_t>(place)].fill_(1);
    }
    pieces.push_back(counts);
    at::Tensor vector = at::cat(pieces);
    pieces.clear();
    replicas_.add_up(vector);
    std::int64_t begin = 0;
    counts = vector.narrow(0, vector.numel() - counts.numel(), counts.numel()).to(at::kDouble);
    for (std::size_t place = 0; place < bucket.parameters.size(); ++place) {
      const at::Tensor& parameter = parameters_[bucket.parameters[place]].tensor;
      const at::Tensor sum = vector.narrow(0, begin, parameter.numel()).view(parameter.sizes());
      begin += parameter.numel();
      if (counts.data_ptr<double>()[place] == 0) continue;
      at::Tensor& grad = parameter.mutable_grad();
      if (grad.defined() && grad.storage().use_count() == 1) {
        grad.copy_(sum);
      } else {
        grad = sum.to(parameter.options().requires_grad(false), /*non_blocking=*/false, /*copy=*/true);
      }
    }
  }

  void join() {
    if (thread_.joinable()) thread_.join();
  }

  Replicas& replicas_;
  std::vector<ReducedParameter> parameters_;
  std::map<std::shared_ptr<torch::autograd::Node>, std::shared_ptr<std::size_t>> hooked_;  // which parameter it is
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  bool is_known_ = false;  // which gradients are accumulated once
  std::thread thread_;
  std::exception_ptr error_;  // of the thread
};

}  // namespace

std::unique_ptr<GradientSum> make_gradient_reducer(Replicas& replicas) {
  return std::make_unique<GradientReducer>(replicas);
}

}  // namespace gpipe::detail
