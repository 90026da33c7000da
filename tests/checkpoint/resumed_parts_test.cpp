// Learning rate schedulers and samplers of libtorch in a checkpoint: a resumed training has the bytes of one without a
// break.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "gpipe/gpipe.h"
#include "tests/checkpoint/training.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using torch::data::samplers::DistributedRandomSampler;
using torch::data::samplers::RandomSampler;
using torch::data::samplers::Sampler;
using torch::data::samplers::SequentialSampler;
using torch::optim::LRScheduler;
using torch::optim::StepLR;

constexpr int kBatch = 4;
constexpr int kBatchesAnEpoch = 6;

// Computes from the rates that it began with, as many schedulers do that libtorch does not have.
class CosineLR : public LRScheduler {
 public:
  explicit CosineLR(torch::optim::Optimizer& optimizer) : LRScheduler(optimizer), base_(get_current_lrs()) {}

 private:
  std::vector<double> get_lrs() override {
    std::vector<double> rates = base_;
    for (double& rate : rates) rate *= 0.5 * (1 + std::cos(0.3 * step_count_));
    return rates;
  }
  const std::vector<double> base_;
};

struct Kind {
  const char* scheduler;
  const char* sampler;
};

class SampledTraining {
 public:
  explicit SampledTraining(int num_stages, const Kind& kind = {"step", "random"})
      : pipeline(chain(), PipelineOptions(num_stages).num_micro_batches(2)),
        optimizer(pipeline->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)) {
    const std::string scheduler_kind = kind.scheduler;
    const std::string sampler_kind = kind.sampler;
    if (scheduler_kind == "step") scheduler = std::make_unique<StepLR>(optimizer, 2, 0.5);
    if (scheduler_kind == "cosine") scheduler = std::make_unique<CosineLR>(optimizer);
    const int size = kBatch * kBatchesAnEpoch;
    if (sampler_kind == "random") sampler = std::make_unique<RandomSampler>(size);
    if (sampler_kind == "sequential") sampler = std::make_unique<SequentialSampler>(size);
    if (sampler_kind == "distributed") sampler = std::make_unique<DistributedRandomSampler>(size);
  }

  void take_steps(int count) {
    for (; count > 0; --count, ++step) {
      auto rows = sampler->next(kBatch);
      if (!rows) {
        scheduler->step();
        auto* distributed = dynamic_cast<DistributedRandomSampler*>(sampler.get());
        if (distributed != nullptr) distributed->set_epoch(distributed->epoch() + 1);
        sampler->reset(c10::nullopt);
        rows = sampler->next(kBatch);
      }
      const at::Tensor input =
          torch::tensor(std::vector<std::int64_t>(rows->begin(), rows->end())).view({kBatch, 1}).to(at::kFloat) / 24;
      optimizer.zero_grad();
      pipeline->train_step(input, input.sin(), torch::nn::MSELoss());
      optimizer.step();
    }
  }

  void save(const std::string& folder) {
    TrainingState state;
    state.step = step;
    save_scheduler(state, *scheduler);
    save_sampler(state, *sampler);
    save_checkpoint(folder, pipeline, optimizer, state);
  }
  TrainingState load(const std::string& folder) {
    TrainingState state = load_checkpoint(folder, pipeline, optimizer);
    load_scheduler(state, *scheduler);
    load_sampler(state, *sampler);
    step = state.step;
    return state;
  }
  double rate() { return optimizer.param_groups()[0].options().get_lr(); }

  static LayerChain chain() {
    return LayerChain().add<torch::nn::Linear>("0", 1, 5).add<nn::Dropout>("1", 0.1).add<torch::nn::Linear>("2", 5, 1);
  }

  Pipeline pipeline;
  torch::optim::SGD optimizer;
  std::unique_ptr<LRScheduler> scheduler;
  std::unique_ptr<Sampler<>> sampler;
  std::int64_t step = 0;
};

class ResumedPartsTest : public CheckpointTest {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

// Saved within an epoch, at its end, and at its beginning.
TEST_F(ResumedPartsTest, AResumedTrainingHasTheBytesOfOneWithoutABreak) {
  for (const Kind& kind :
       {Kind{"step", "random"}, Kind{"cosine", "random"}, Kind{"step", "sequential"}, Kind{"cosine", "distributed"}}) {
    for (const int saved_after : {2 * kBatchesAnEpoch + 4, 3 * kBatchesAnEpoch, 1}) {
      SCOPED_TRACE(testing::Message() << kind.scheduler << ", " << kind.sampler << ", step " << saved_after);
      torch::manual_seed(2);
      SampledTraining whole(2, kind);
      whole.take_steps(saved_after);
      whole.save(folder_);
      whole.take_steps(5 * kBatchesAnEpoch);

      torch::manual_seed(99);  // in another process it would be anything
      SampledTraining resumed(3, kind);
      const TrainingState state = resumed.load(folder_);
      EXPECT_THAT(state.warnings, IsEmpty());
      EXPECT_EQ(state.step, saved_after);
      resumed.take_steps(5 * kBatchesAnEpoch);
      EXPECT_EQ(resumed.rate(), whole.rate());
      for (std::size_t index = 0; index < whole.pipeline->parameters().size(); ++index) {
        EXPECT_TRUE(test::same_bits(whole.pipeline->parameters()[index], resumed.pipeline->parameters()[index]))
            << index;
      }
      std::filesystem::remove_all(folder_);
    }
  }
}

TEST_F(ResumedPartsTest, AStateThatIsUsedAgainHoldsTheLastOnly) {
  SampledTraining training(1);
  TrainingState state;
  for (int time = 0; time < 2; ++time) {
    training.take_steps(1);
    save_scheduler(state, *training.scheduler);
    save_sampler(state, *training.sampler);
    save_sampler(state, *training.sampler, "other");
  }
  EXPECT_EQ(state.added.size(), 6U);  // index, indices and the generator of each
  SampledTraining other(1);
  load_sampler(state, *other.sampler, "other");
  EXPECT_EQ(static_cast<RandomSampler&>(*other.sampler).index(), 8U);
}

TEST_F(ResumedPartsTest, ALearningRateThatIsNotThatOfTheSaveIsWarnedOf) {
  SampledTraining training(1);
  training.take_steps(3 * kBatchesAnEpoch + 1);
  training.save(folder_);
  EXPECT_EQ(training.rate(), 0.05);

  SampledTraining changed(1);
  TrainingState state = load_checkpoint(folder_, changed.pipeline, changed.optimizer);
  EXPECT_THAT(state.learning_rates, ElementsAre(0.05));
  EXPECT_THAT(state.warnings, IsEmpty());
  changed.optimizer.param_groups()[0].options().set_lr(0.2);
  load_scheduler(state, *changed.scheduler);
  EXPECT_THAT(state.warnings, ElementsAre(HasSubstr("the learning rate is 0.2, but was 0.05")));
}

TEST_F(ResumedPartsTest, ACheckpointWithoutWhatChangedTheLearningRateIsWarnedOf) {
  SampledTraining training(1);
  training.take_steps(1);
  save_checkpoint(folder_, training.pipeline, training.optimizer, {});
  EXPECT_THAT(load_checkpoint(folder_, training.pipeline, training.optimizer).warnings, IsEmpty());
  training.take_steps(3 * kBatchesAnEpoch);
  TrainingState state;
  state.step = 1;
  save_checkpoint(folder_, training.pipeline, training.optimizer, state);
  SampledTraining resumed(1);
  EXPECT_THAT(load_checkpoint(folder_, resumed.pipeline, resumed.optimizer).warnings,
              ElementsAre(AllOf(HasSubstr("is 0.05, as when"), HasSubstr("not 0.1"), HasSubstr("save_scheduler"))));
}

TEST_F(ResumedPartsTest, WhatIsNotThereOrOfAnotherKindIsRefused) {
  SampledTraining training(1);
  TrainingState empty;
  EXPECT_THAT(
      [&] { load_scheduler(empty, *training.scheduler); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("no learning rate scheduler"), HasSubstr("save_scheduler"))));
  EXPECT_THAT([&] { load_sampler(empty, *training.sampler); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("no sampler \"train\""), HasSubstr("save_sampler"))));
  for (const char* text : {"falls", "5", "{}", R"({"scheduler": "torch::optim::StepLR", "steps": -1})",
                           R"({"scheduler": 1, "steps": 1})", R"({"scheduler": "a", "steps": 4294967296})"}) {
    empty.learning_rate = text;
    EXPECT_THROW(load_scheduler(empty, *training.scheduler), InvalidArgument) << text;
  }
  TrainingState state;
  save_scheduler(state, *training.scheduler);
  save_sampler(state, *training.sampler);
  SampledTraining other(1, {"cosine", "distributed"});
  EXPECT_THAT([&] { load_scheduler(state, *other.scheduler); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("torch::optim::StepLR"), HasSubstr("CosineLR"))));
  EXPECT_THAT([&] { load_sampler(state, *other.sampler); },
              ThrowsMessage<InvalidArgument>(HasSubstr("make the same sampler")));
  const DistributedRandomSampler of_two(24, 2, 1);
  EXPECT_THAT([&] { save_sampler(state, of_two); }, ThrowsMessage<InvalidArgument>(HasSubstr("replica_share")));
}

}  // namespace
}  // namespace gpipe
