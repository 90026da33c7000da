// Weights go from one split of a model to another, and only into a model of the same names and shapes.
#include "gpipe/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/deferred_batch_norm.h"
#include "tests/model/same_bits.h"
#include "tests/os/temporary_folder.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class WeightsTest : public ::testing::Test {
 protected:
  const test::TemporaryFolder folder_;
  const std::string path_ = folder_.path("weights.safetensors");
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
    EXPECT_TRUE(test::same_bits(got[index].second, expected[index].second)) << got[index].first;
  }
  trained->eval();
  other->eval();
  const at::Tensor input = torch::randn({4, 3});
  EXPECT_TRUE(test::same_bits(trained->forward(input), other->forward(input)));
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
  EXPECT_TRUE(test::same_bits(step(resumed), step(whole)));
}

TEST_F(WeightsTest, OfAnotherModelAreRefusedAndNothingIsChanged) {
  const Pipeline trained = make_pipeline(1, 1);
  Pipeline other = make_pipeline(1, 2, 5);
  const at::Tensor before = other->parameters().front().clone();
  save_weights(path_, *trained);
  EXPECT_THAT([&] { load_weights(path_, *other); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("another model"),
                                                   HasSubstr("\"block.0.linear.weight\": [4, 3] there, [5, 3] here"))));
  EXPECT_TRUE(test::same_bits(other->parameters().front(), before));

  torch::nn::Linear small(3, 4);
  EXPECT_THAT([&] { load_weights(path_, *small); },
              ThrowsMessage<CheckpointError>(HasSubstr("it has no \"weight\", \"bias\";")));
  save_weights(path_, *small);
  EXPECT_THAT(
      [&] {
        load_weights({{{"weight", small->weight}, {"bias", small->bias}, {"x", small->bias}}, {}}, "file", *small);
      },
      ThrowsMessage<CheckpointError>(HasSubstr("no place here for its \"x\"")));
}

TEST_F(WeightsTest, ThatFitAreLoadedIfItIsNotStrict) {
  torch::nn::Sequential old_model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  torch::nn::Sequential new_model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 5), torch::nn::Linear(5, 2));
  save_weights(path_, *old_model);
  const at::Tensor head = new_model->parameters()[2].clone();
  EXPECT_THROW(load_weights(path_, *new_model), CheckpointError);
  EXPECT_FALSE(test::same_bits(new_model->parameters()[0], old_model->parameters()[0]));
  LoadWeightsOptions options;
  options.strict = false;
  const WeightsReport report = load_weights(path_, *new_model, options);
  EXPECT_EQ(report.num_loaded, 2);
  EXPECT_THAT(report.missing, ::testing::ElementsAre("\"2.weight\"", "\"2.bias\""));
  EXPECT_THAT(report.mismatched,
              ::testing::ElementsAre("\"1.weight\": [2, 4] there, [5, 4] here", "\"1.bias\": [2] there, [5] here"));
  EXPECT_THAT(report.unexpected, ::testing::IsEmpty());
  EXPECT_TRUE(test::same_bits(new_model->parameters()[0], old_model->parameters()[0]));
  EXPECT_TRUE(test::same_bits(new_model->parameters()[2], head));
}

TEST_F(WeightsTest, CanHaveAPrefixAndOtherNames) {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  const NamedTensors renamed = {{"net.body.weight", torch::full({4, 3}, 1.0F)},
                                {"net.body.bias", torch::full({4}, 2.0F)},
                                {"net.out_w", torch::full({2, 4}, 3.0F)},
                                {"net.1.bias", torch::full({2}, 4.0F)},
                                {"decoder.weight", torch::ones(1)}};
  LoadWeightsOptions options;
  options.prefix = "net.";
  options.rename = {{"body.", "0."}, {"out_w", "1.weight"}};
  EXPECT_EQ(load_weights({renamed, {}}, "file", *model, options).num_loaded, 4);
  float expected = 1;
  for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.eq(expected++).all().item<bool>());
  options.rename["body."] = "1.";
  EXPECT_THAT(
      [&] {
        load_weights({renamed, {}}, "file", *model, options);
      },
      ThrowsMessage<CheckpointError>(HasSubstr("two of its tensors would be \"1.")));
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
    EXPECT_TRUE(test::same_bits(parameter, torch::full_like(parameter, 0.5)));
  }
}

}  // namespace
}  // namespace gpipe
