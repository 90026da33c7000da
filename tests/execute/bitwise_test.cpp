// The first promise: the same bits for every number of stages, schedule and recompute mode, and for every timing.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "tests/execute/training.h"

namespace gpipe::test {
namespace {

class BitwiseTest : public ::testing::TestWithParam<std::string> {
 protected:
  // The reference runs with as many intra-op threads as a stage.
  void SetUp() override { at::set_num_threads(1); }

  // In every recompute mode.
  static void expect_trains_as(const Trained& plain, const TestModel& model, std::int64_t num_samples, int workers,
                               const std::string& schedule) {
    for (const Recompute recompute : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever}) {
      SCOPED_TRACE(testing::Message() << model.name << ", " << num_samples << " samples, " << workers << " workers, "
                                      << schedule << ", recompute " << name(recompute));
      expect_same_bits(train_pipelined(model, num_samples, options_for(model, workers, schedule, recompute)), plain);
      if (HasFailure()) return;
    }
  }
};

TEST_P(BitwiseTest, EveryNumberOfStagesScheduleAndRecomputeModeTrainsAsThePlainModelDoes) {
  const TestModel model = make_model(GetParam());
  for (const std::int64_t num_samples : {16, 13, 3}) {
    const Trained plain = train_plainly(model, num_samples);
    for (const int workers : {1, 2, 3, 4, 8}) {
      for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "hanayo"}) {
        expect_trains_as(plain, model, num_samples, workers, schedule);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST_P(BitwiseTest, EveryScheduleWithASplitBackwardTrainsAsThePlainModelDoes) {
  const TestModel model = make_model(GetParam());
  const std::vector<std::pair<std::int64_t, std::vector<int>>> grid = {{13, {1, 2, 4, 8}}, {16, {3}}, {3, {2}}};
  for (const auto& [num_samples, all_workers] : grid) {
    const Trained plain = train_plainly(model, num_samples);
    for (const int workers : all_workers) {
      for (const std::string schedule : {"zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v"}) {
        expect_trains_as(plain, model, num_samples, workers, schedule);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

// A step long enough for every worker to come to the steady phase of the schedule.
struct LongStep {
  int workers;
  int num_micro_batches;
  std::int64_t num_samples;
};

std::string name_of(const LongStep& step) {
  return std::to_string(step.workers) + "Workers" + std::to_string(step.num_micro_batches) + "MicroBatches" +
         std::to_string(step.num_samples) + "Samples";
}

class SteadyPhaseTest : public ::testing::TestWithParam<LongStep> {};

TEST_P(SteadyPhaseTest, EveryScheduleTrainsAsThePlainModelDoes) {
  at::set_num_threads(1);
  const auto& [workers, num_micro_batches, num_samples] = GetParam();
  TestModel model = make_model("mlp");
  model.input = torch::randn({num_samples, model.input.size(1)});
  model.target = torch::randint(5, {num_samples}, torch::kLong);
  const Trained plain = train_plainly(model, num_samples, num_micro_batches);
  for (const std::string schedule : {"zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v", "hanayo"}) {
    for (const Recompute recompute : {Recompute::kNever, Recompute::kAlways}) {
      SCOPED_TRACE(testing::Message() << schedule << ", recompute " << name(recompute));
      const PipelineOptions options =
          options_for(model, workers, schedule, recompute).num_micro_batches(num_micro_batches);
      expect_same_bits(train_pipelined(model, num_samples, options), plain);
      ASSERT_FALSE(HasFailure());
    }
  }
}

// With fewer samples than micro-batches, the last micro-batches are not made.
INSTANTIATE_TEST_SUITE_P(Sizes, SteadyPhaseTest,
                         ::testing::Values(LongStep{8, 16, 17}, LongStep{8, 16, 13}, LongStep{4, 12, 13},
                                           LongStep{4, 12, 23}),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(BitwiseTest, ThePartitionFoundByProfilingTrainsAsThePlainModelDoes) {
  const TestModel model = make_model(GetParam());
  expect_same_bits(train_pipelined(model, 13, PipelineOptions(3).num_micro_batches(kNumMicroBatches)),
                   train_plainly(model, 13));
}

// While it lives, some of libtorch's operations, in every thread, forward and backward, take longer, each time others:
// every thread has a seed of its own, the number of those before it.
class RandomDelays {
 public:
  RandomDelays()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
                                        static std::atomic<unsigned> num_threads{0};
                                        thread_local std::mt19937 random{num_threads++};
                                        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
                                        return std::unique_ptr<at::ObserverContext>();
                                      }).samplingProb(0.02))) {}
  ~RandomDelays() { at::removeCallback(handle_); }

 private:
  at::CallbackHandle handle_;
};

TEST_P(BitwiseTest, RandomDelaysChangeNothing) {
  const TestModel model = make_model(GetParam());
  const Trained plain = train_plainly(model, 13);
  const RandomDelays delays;
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved"}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      SCOPED_TRACE(testing::Message() << schedule << ", repeat " << repeat);
      expect_same_bits(train_pipelined(model, 13, options_for(model, 4, schedule, Recompute::kExceptLast)), plain);
      ASSERT_FALSE(HasFailure());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BitwiseTest, ::testing::Values("mlp", "cnn", "transformer", "unet", "padded"),
                         [](const auto& test) { return test.param; });

class FullBatchTest : public ::testing::TestWithParam<TestModel (*)(bool by_sample)> {};

TEST_P(FullBatchTest, WithDropoutBySampleThePipelineTrainsAsTheFullBatchDoes) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const TestModel model = GetParam()(/*by_sample=*/true);
  const Trained whole = train_plainly(model, 13, 1);
  for (const int num_micro_batches : {1, 4, 13}) {
    const Trained split = train_pipelined(
        model, 13, PipelineOptions(3).num_micro_batches(num_micro_batches).recompute(Recompute::kAlways));
    for (const auto& [name, tensor] : whole.tensors) {
      at::Tensor difference = (split.tensors.at(name) - tensor).detach().abs();
      // The attention does not depend on the bias of its keys, the middle third: its gradient is rounding, which Adam
      // blows up.
      if (name.find("in_proj_bias") != std::string::npos) difference.chunk(3)[1].zero_();
      EXPECT_LT(difference.max().item<double>(), 1e-5) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FullBatchTest, ::testing::Values(mlp, transformer, unet),
                         [](const auto& test) { return test.param(true).name; });

}  // namespace
}  // namespace gpipe::test
