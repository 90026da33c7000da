// What a step gives back besides gradients: metrics, memory, times; and what is done with the gradients of all stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/simulate/simulate.h"
#include "tests/execute/plain_chain.h"
#include "tests/execute/test_models.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Linear;

LayerChain four_linears(int size = 4) {
  LayerChain chain;
  for (const char* name : {"a", "b", "c", "d"}) chain.add<Linear>(name, size, size);
  return chain;
}

TEST(StepResult, HoldsWhatTheLossReportsScaledAsTheLossIs) {
  Pipeline pipeline(four_linears(), PipelineOptions(2).num_micro_batches(3).balance({2, 2}));
  const at::Tensor input = torch::randn({7, 4});  // micro-batches of 3, 2 and 2
  const StepResult step = pipeline->train_step(
      Tensors{input}, Tensors{torch::arange(7)}, [](const Tensors& outputs, const Tensors& targets) {
        return LossValue(outputs[0].pow(2).mean(),
                         {{"mean target", targets[0].to(torch::kDouble).mean()}, {"targets", targets[0]}});
      });
  EXPECT_DOUBLE_EQ(step.metrics.at("mean target").item<double>(), 3);
  EXPECT_TRUE(test::same_bits(step.metrics.at("targets"), torch::arange(7)));
}

TEST(StepResult, SumsWhatTheLossReportsIfTheLossIsASum) {
  Pipeline pipeline(four_linears(),
                    PipelineOptions(2).num_micro_batches(3).balance({2, 2}).loss_reduction(LossReduction::kSum));
  const StepResult step = pipeline->train_step(
      Tensors{torch::randn({7, 4})}, Tensors{torch::arange(7)}, [](const Tensors& outputs, const Tensors& targets) {
        return LossValue(outputs[0].pow(2).sum(), {{"count", torch::tensor(targets[0].size(0))}});
      });
  EXPECT_EQ(step.metrics.at("count").item<int>(), 7);
}

TEST(StepResult, ALossThatIsNotFiniteIsRefusedOnRequestAndLeavesTheGradientsAsTheyWere) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Pipeline pipeline(four_linears(), PipelineOptions(2).num_micro_batches(4).balance({2, 2}).check_loss(true));
    const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
      return (output.sum(1) * target).mean();
    };
    const at::Tensor input = torch::randn({8, 4});
    at::Tensor target = torch::ones({8});
    pipeline->train_step(input, target, loss);
    Tensors before;
    for (const at::Tensor& parameter : pipeline->parameters()) before.push_back(parameter.grad().clone());
    target[5] = bad;
    EXPECT_THAT([&] { pipeline->train_step(input, target, loss); },
                ThrowsMessage<NonFiniteLossError>(AllOf(HasSubstr("micro-batch 2"), HasSubstr("samples 4 to 5"))));
    for (std::size_t index = 0; index < before.size(); ++index) {
      EXPECT_TRUE(test::same_bits(pipeline->parameters()[index].grad(), before[index]));
    }
    target[5] = 1;
    EXPECT_NO_THROW(pipeline->train_step(input, target, loss));
  }
}

TEST(StepResult, WithoutTheRequestALossThatIsNotFiniteIsTheCallersAffair) {
  Pipeline pipeline(four_linears(), PipelineOptions(2).balance({2, 2}));
  const StepResult step =
      pipeline->train_step(torch::randn({8, 4}), torch::ones({8}),
                           [](const at::Tensor& output, const at::Tensor&) { return output.mean() / 0.0 * 0.0; });
  EXPECT_TRUE(std::isnan(step.loss.item<double>()));
}

TEST(ClipGradNorm, GivesTheSameNormAndGradientsForEveryNumberOfStages) {
  const at::Tensor input = torch::randn({8, 4});
  std::vector<Tensors> clipped;
  std::vector<double> norms;
  for (const int stages : {1, 2, 4}) {
    Pipeline pipeline(four_linears(), PipelineOptions(stages).num_micro_batches(4));
    pipeline->train_step(input, input, torch::nn::MSELoss());
    double squares = 0;
    for (const at::Tensor& parameter : pipeline->parameters()) squares += parameter.grad().pow(2).sum().item<double>();
    norms.push_back(clip_grad_norm_(pipeline, 0.01));
    EXPECT_NEAR(norms.back(), std::sqrt(squares), 1e-5);
    Tensors grads;
    double after = 0;
    for (const at::Tensor& parameter : pipeline->parameters()) {
      grads.push_back(parameter.grad());
      after += parameter.grad().pow(2).sum().item<double>();
    }
    EXPECT_NEAR(std::sqrt(after), 0.01, 1e-4);
    clipped.push_back(grads);
    EXPECT_EQ(norms.back(), norms.front());
    for (std::size_t index = 0; index < grads.size(); ++index) {
      EXPECT_TRUE(test::same_bits(grads[index], clipped.front()[index]));
    }
  }
}

std::int64_t bytes_of(const Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

TEST(StageMemory, ReturnsToParametersAndGradientsAfterEachOfAThousandSteps) {
  LayerChain chain = four_linears(16);
  chain.add<nn::Dropout>("dropout", 0.1).add<torch::nn::BatchNorm1d>("norm", 16);
  for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
    Pipeline pipeline(
        chain, PipelineOptions(2).num_micro_batches(4).balance({3, 3}).recompute(recompute).measure_memory(true));
    torch::optim::Adam optimizer(pipeline->parameters());
    const at::Tensor input = torch::randn({8, 16});
    const std::int64_t expected = 2 * bytes_of(pipeline->parameters()) + bytes_of(pipeline->buffers());
    for (int step = 0; step < 1000; ++step) {
      optimizer.zero_grad();
      pipeline->train_step(input, input, torch::nn::MSELoss());
      optimizer.step();
      if (step % 100 != 0 && step != 999) continue;
      std::int64_t live = 0;
      for (const StageMemory& memory : pipeline->memory()) live += memory.live_bytes;
      EXPECT_EQ(live, expected) << "after step " << step;
    }
  }
}

// Note [Formula of the peak]: parameters and gradients, the inputs of all micro-batches of the schedule, and the
// working set of one micro-batch, which a step of one micro-batch has by itself.
TEST(StageMemory, WithRecomputeAStageKeepsOnlyItsInputs) {
  constexpr int kRows = 4;
  const auto peaks = [](int num_micro_batches, Recompute recompute) {
    LayerChain chain;
    chain.add<torch::nn::Embedding>("embedding", 50, 64);
    for (int block = 0; block < 4; ++block) {
      chain.add<test::AttentionBlock>("attention" + std::to_string(block), 64, 4, 0.1);
      chain.add<test::FeedForwardBlock>("feed_forward" + std::to_string(block), 64, 0.1);
    }
    chain.add<Linear>("head", 64, 50);
    Pipeline pipeline(chain, PipelineOptions(2)
                                 .num_micro_batches(num_micro_batches)
                                 .schedule("gpipe")
                                 .balance({5, 5})
                                 .recompute(recompute)
                                 .measure_memory(true));
    const at::Tensor tokens = torch::randint(50, {kRows * num_micro_batches, 16}, torch::kLong);
    StepResult step;
    for (int repeat = 0; repeat < 2; ++repeat) step = pipeline->train_step(tokens, tokens, test::token_cross_entropy);
    return step.memory;
  };
  constexpr std::int64_t kBoundary = kRows * 16 * 64 * 4;
  const auto one = peaks(1, Recompute::kAlways);
  const auto sixteen = peaks(16, Recompute::kAlways);
  const auto kept = peaks(16, Recompute::kNever);
  const auto formula = static_cast<double>(one[1].peak_bytes + 15 * kBoundary);
  EXPECT_NEAR(static_cast<double>(sixteen[1].peak_bytes), formula, 0.05 * formula);
  EXPECT_NEAR(static_cast<double>(sixteen[0].peak_bytes), static_cast<double>(one[0].peak_bytes),
              0.05 * static_cast<double>(one[0].peak_bytes) + kBoundary);
  EXPECT_GT(kept[1].peak_bytes, 3 * sixteen[1].peak_bytes);
}

// Needs nothing of its input for its backward.
struct SumOfRowsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x.sum(/*dim=*/1, /*keepdim=*/true); }
};
TORCH_MODULE(SumOfRows);

// Needs room while it runs.
struct RoomyImpl : torch::nn::Module {
  explicit RoomyImpl(std::int64_t num_floats) : num_floats_(num_floats) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor room = torch::empty({num_floats_});
    return x * 2;
  }
  std::int64_t num_floats_;
};
TORCH_MODULE(Roomy);

TEST(StageMemory, AStageLetsGoOfItsInputWhenNoLayerNeedsItAnyMore) {
  constexpr std::int64_t kRows = 4;
  constexpr std::int64_t kWidth = 1 << 16;
  constexpr std::int64_t kInputBytes = kRows * kWidth * 4;
  LayerChain chain;
  chain.add<Linear>("wide", 1, kWidth).add<SumOfRows>("sum").add<Roomy>("roomy", kRows * kWidth);
  Pipeline pipeline(chain, PipelineOptions(2).num_micro_batches(1).balance({1, 2}).measure_memory(true));
  const at::Tensor input = torch::randn({kRows, 1});
  const StepResult step = pipeline->train_step(input, input, torch::nn::MSELoss());
  EXPECT_GE(step.memory[1].peak_bytes, kInputBytes);
  EXPECT_LT(step.memory[1].peak_bytes, kInputBytes * 3 / 2);
}

// Makes two stages work at the same time, on any machine: the second one's forward of a micro-batch ends only when the
// first one's of the next has begun, and the other way round; and so do the backwards.
//
//     first    F0 F1 F2 F3       B0 B1 B2 B3
//     second      F0 F1 F2 F3 B0 B1 B2 B3
class Meetings {
 public:
  // Waits until the other stage is at the meeting of that number, too.
  void attend(ActionKind kind, int number) {
    std::unique_lock<std::mutex> lock(mutex_);
    int& present = present_[{kind, number}];
    ++present;
    changed_.notify_all();
    if (!has_failed_) has_failed_ = !changed_.wait_for(lock, std::chrono::seconds(30), [&] { return present == 2; });
  }
  bool have_failed() const { return has_failed_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<ActionKind, int>, int> present_;
  bool has_failed_ = false;
};

constexpr int kNumMeetingMicroBatches = 4;

// The layer of a stage that meets the other one's.
class MeetingImpl : public torch::nn::Module {
 public:
  MeetingImpl(std::shared_ptr<Meetings> meetings, bool is_first)
      : meetings_(std::move(meetings)), is_first_(is_first) {}

  at::Tensor forward(const at::Tensor& input) {
    if (!at::GradMode::is_enabled()) return input * weight_;  // a trial, in which the stages run one by one
    const int micro_batch = LayerScope::current()->micro_batch;
    attend(ActionKind::kForward, is_first_ ? micro_batch - 1 : micro_batch);
    const at::Tensor output = input * weight_;
    output.register_hook([this, micro_batch](const at::Tensor& /*grad*/) {
      attend(ActionKind::kBackward, is_first_ ? micro_batch : micro_batch - 1);
    });
    return output;
  }

 private:
  void attend(ActionKind kind, int number) {
    if (number >= 0 && number < kNumMeetingMicroBatches - 1) meetings_->attend(kind, number);
  }

  const std::shared_ptr<Meetings> meetings_;
  const bool is_first_;
  const at::Tensor weight_ = register_parameter("weight", torch::ones({1}));
};
TORCH_MODULE(Meeting);

Pipeline pipeline_that_meets(const std::shared_ptr<Meetings>& meetings, const char* schedule) {
  LayerChain chain;
  chain.add<Meeting>("first", meetings, true).add<Meeting>("second", meetings, false);
  return Pipeline(chain, PipelineOptions(2)
                             .num_micro_batches(kNumMeetingMicroBatches)
                             .schedule(schedule)
                             .balance({1, 1})
                             .recompute(Recompute::kNever));
}

// Whether some action of this kind on one worker runs during one on the other.
bool overlaps(const Timeline& timeline, ActionKind kind) {
  for (const Span& first : timeline.workers[0].spans) {
    for (const Span& second : timeline.workers[1].spans) {
      if (first.action.kind == kind && second.action.kind == kind && first.start_seconds < second.end_seconds &&
          second.start_seconds < first.end_seconds) {
        return true;
      }
    }
  }
  return false;
}

TEST(StepTimeline, ForwardsOverlapAndBackwardsOverlapInATrainStep) {
  const auto meetings = std::make_shared<Meetings>();
  Pipeline pipeline = pipeline_that_meets(meetings, "gpipe");
  const StepResult step = pipeline->train_step(torch::ones({4, 1}), torch::ones({4, 1}), torch::nn::MSELoss());
  EXPECT_FALSE(meetings->have_failed());
  EXPECT_TRUE(overlaps(step.timeline, ActionKind::kForward));
  EXPECT_TRUE(overlaps(step.timeline, ActionKind::kBackward));
}

TEST(StepTimeline, ForwardsOverlapInTheDropInForwardAndBackwardsInItsBackward) {
  const auto meetings = std::make_shared<Meetings>();
  Pipeline pipeline = pipeline_that_meets(meetings, "1f1b");
  const at::Tensor output = pipeline->forward(torch::ones({4, 1}));
  EXPECT_TRUE(overlaps(pipeline->last_timeline(), ActionKind::kForward));
  output.sum().backward();
  EXPECT_TRUE(overlaps(pipeline->last_timeline(), ActionKind::kBackward));
  EXPECT_FALSE(meetings->have_failed());
}

TEST(StepTimeline, HasTheActionsOfTheSimulatedOneInTheSameOrder) {
  Pipeline pipeline(four_linears(), PipelineOptions(2).num_micro_batches(4).balance({2, 2}));
  const at::Tensor input = torch::randn({8, 4});
  const Timeline measured = pipeline->train_step(input, input, torch::nn::MSELoss()).timeline;
  const Schedule schedule = schedules::one_f_one_b(2, 4);
  const Timeline simulated = simulate(schedule, uniform_costs(schedule));
  ASSERT_EQ(measured.num_workers(), simulated.num_workers());
  for (int worker = 0; worker < 2; ++worker) {
    ASSERT_EQ(measured.workers[worker].spans.size(), simulated.workers[worker].spans.size());
    for (std::size_t index = 0; index < measured.workers[worker].spans.size(); ++index) {
      EXPECT_EQ(measured.workers[worker].spans[index].action, simulated.workers[worker].spans[index].action);
    }
  }
}

}  // namespace
}  // namespace gpipe
