// Weights go from one split of a model to another, and only into a model of the same names and shapes.
#include "gpipe/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/deferred_batch_norm.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class WeightsTest : public ::testing::Test {
 protected:
  ~WeightsTest() override { std::filesystem::remove(path_); }
  const std::string path_ =
      std::filesystem::temp_directory_path() / ("gpipe_weights_" + std::to_string(getpid()) + ".safetensors");
};

Pipeline make_pipeline(int num_stages, std::uint64_t seed, int width = 4) {
  LayerChain chain;
  chain.add<torch::nn::Linear>("block.0.linear", 3, width);
  chain.add<nn::DeferredBatchNorm1d>("block.0.norm", width);
  chain.add<torch::nn::Linear>("middle", width, width);
  chain.add<torch::nn::Linear>("head", width, width);
  chain.tie("middle.weight", "head.weight");
  std::vector<int> balance(num_stages, 1);
  balance.front() = 5 - num_stages;
  return Pipeline(chain, PipelineOptions(num_stages).num_micro_batches(4).seed(seed).balance(balance));
}

TEST_F(WeightsTest, GoFromOneSplitToAnother) {
  Pipeline trained = make_pipeline(3, 1);
  trained->train_step(torch::randn({8, 3}), torch::randn({8, 4}), torch::nn::MSELoss());
  save_weights(path_, *trained);
  Pipeline other = make_pipeline(1, 2);
  load_weights(path_, *other);
  const NamedTensors expected = weights_of(*trained);
  const NamedTensors got = weights_of(*other);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t index = 0; index < got.size(); ++index) {
    EXPECT_EQ(got[index].first, expected[index].first);
    EXPECT_TRUE(torch::equal(got[index].second, expected[index].second)) << got[index].first;
  }
  trained->eval();
  other->eval();
  const at::Tensor input = torch::randn({4, 3});
  EXPECT_TRUE(torch::equal(trained->forward(input), other->forward(input)));
}

TEST_F(WeightsTest, WithTheStepATrainingGoesOnExactly) {
  const auto make = [](int num_stages) {
    return Pipeline(LayerChain()
                        .add<torch::nn::Linear>("first", 4, 8)
                        .add<torch::nn::Dropout>("dropout", 0.5)
                        .add<torch::nn::Linear>("second", 8, 4),
                    PipelineOptions(num_stages).num_micro_batches(2));
  };
  const at::Tensor input = torch::randn({4, 4});
  const auto step = [&](Pipeline& pipeline) {
    torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
    optimizer.zero_grad();
    const at::Tensor loss = pipeline->train_step(input, input, torch::nn::MSELoss()).loss;
    optimizer.step();
    return loss;
  };
  Pipeline whole = make(1);
  for (int count = 0; count < 3; ++count) step(whole);
  save_weights(path_, *whole);
  Pipeline resumed = make(2);
  load_weights(path_, *resumed);
  resumed->set_step(whole->step());
  EXPECT_TRUE(torch::equal(step(resumed), step(whole)));
}

TEST_F(WeightsTest, OfAnotherModelAreRefusedAndNothingIsChanged) {
  const Pipeline trained = make_pipeline(1, 1);
  Pipeline other = make_pipeline(1, 2, 5);
  const at::Tensor before = other->parameters().front().clone();
  save_weights(path_, *trained);
  EXPECT_THAT(
      [&] { load_weights(path_, *other); },
      ThrowsMessage<CheckpointError>(AllOf(
          HasSubstr("another model"), HasSubstr("\"block.0.linear.weight\" is of shape [4, 3] there, but [5, 3]"))));
  EXPECT_TRUE(torch::equal(other->parameters().front(), before));

  torch::nn::Linear small(3, 4);
  EXPECT_THAT([&] { load_weights(path_, *small); },
              ThrowsMessage<CheckpointError>(HasSubstr("it has no \"weight\" and 1 other")));
  save_weights(path_, *small);
  EXPECT_THAT(
      [&] {
        load_weights({{{"weight", small->weight}, {"bias", small->bias}, {"x", small->bias}}, {}}, "file", *small);
      },
      ThrowsMessage<CheckpointError>(HasSubstr("\"x\" in it has no place here")));
}

TEST_F(WeightsTest, OfPublicFilesLoadInSpiteOfTheirHabits) {
  Pipeline pipeline = make_pipeline(1, 3);
  NamedTensors wrapped;
  for (const auto& [name, tensor] : weights_of(*pipeline)) {
    if (name.find("num_batches_tracked") == std::string::npos) {
      wrapped.emplace_back("module." + name, torch::full_like(tensor, 0.5, at::kHalf));
    }
  }
  load_weights({wrapped, {}}, "file", *pipeline);
  for (const at::Tensor& parameter : pipeline->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(parameter, torch::full_like(parameter, 0.5)));
  }
}

}  // namespace
}  // namespace gpipe
