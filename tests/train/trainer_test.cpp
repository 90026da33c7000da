// The training loop on a task of the tests' own.
#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <string>

#include "cli/terminal.h"
#include "data/data_error.h"
#include "tests/os/temporary_folder.h"

namespace gpipe::train {
namespace {

using ::testing::HasSubstr;

// A line through points; `before_batch` is called with the number of each batch.
class PointsTask : public Task {
 public:
  explicit PointsTask(std::function<void(int)> before_batch) : before_batch_(std::move(before_batch)) {
    batches_.emplace(/*num_samples=*/400, /*batch_size=*/4, data::BatchOptions());
  }

  LayerChain chain() const override {
    LayerChain chain;
    chain.add<torch::nn::Linear>("line", 1, 1);
    return chain;
  }
  const char* unit() const override { return "points"; }
  std::string data_hash() const override { return ""; }
  std::string test_hash() const override { return ""; }
  PipelineImpl::Loss loss() const override {
    return [](const Tensors& outputs, const Tensors& targets) {
      return LossValue((outputs[0] - targets[0]).square().mean());
    };
  }
  std::vector<Measure> evaluate(Pipeline&, bool, const GoesOn&) override { return {}; }
  std::map<std::string, std::string> metadata() const override { return {}; }

 private:
  TensorBatch to_tensors(const data::Batch& batch) const override {
    before_batch_(static_cast<int>(batch.position.batch));
    const at::Tensor x = torch::arange(4, torch::kFloat).view({4, 1});
    return {{x}, {2 * x}, 4, {}, {}};
  }

  std::function<void(int)> before_batch_;
};

TEST(Trainer, TellsTheErrorThatEndedTheTrainingBeforeThatOfTheFilesThatWereToBeKept) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder.path("weights"));
  PointsTask task([&](int batch) {
    if (batch < 2) return;
    std::filesystem::remove(folder.path("weights"));
    throw data::DataError("points", "they have come to an end", "draw more");
  });
  const Pipeline pipeline(task.chain(), PipelineOptions(1).num_micro_batches(2).loss_reduction(LossReduction::kSum));
  TrainerOptions options;
  options.num_steps = 5;
  options.save_path = folder.path("weights/line.safetensors");
  testing::internal::CaptureStderr();
  try {
    run_training(pipeline, task, options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const data::DataError& error) {  // as the command does
    cli::print_error(error.what());
  }
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("they have come to an end"));
  EXPECT_THAT(told, HasSubstr("--save"));
  EXPECT_THAT(told, HasSubstr("weights/line.safetensors"));
  EXPECT_LT(told.find("they have come to an end"), told.find("weights/line.safetensors"));
}

TEST(Trainer, KeepsTheWeightsOfTheStepBeforeAnError) {
  const test::TemporaryFolder folder;
  PointsTask task([](int batch) {
    if (batch == 2) throw data::DataError("points", "they have come to an end", "draw more");
  });
  const Pipeline pipeline(task.chain(), PipelineOptions(1).num_micro_batches(2).loss_reduction(LossReduction::kSum));
  TrainerOptions options;
  options.num_steps = 5;
  options.save_path = folder.path("line.safetensors");
  EXPECT_THROW(run_training(pipeline, task, options), data::DataError);
  EXPECT_TRUE(std::filesystem::exists(options.save_path));
}

}  // namespace
}  // namespace gpipe::train
