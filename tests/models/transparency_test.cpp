// The models train to the bits of plain training on one, two and four stages.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/resnet_cifar.h"
#include "models/transformer_lm.h"
#include "models/translation_transformer.h"
#include "models/unet.h"
#include "tests/execute/plain_chain.h"
#include "tests/model/same_bits.h"

namespace gpipe::test {
namespace {

using namespace gpipe::models;  // NOLINT(google-build-using-namespace)

struct Case {
  std::string name;
  std::function<LayerChain()> make;
  std::function<Tensors()> inputs;
  std::function<at::Tensor()> target;
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
};

void PrintTo(const Case& test, std::ostream* stream) { *stream << test.name; }

at::Tensor class_loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}
at::Tensor token_loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output.flatten(0, 1), target.flatten());
}

constexpr std::int64_t kNumSamples = 10;  // four micro-batches of 3, 3, 2 and 2

Tensors images(std::int64_t channels, std::int64_t size) { return {torch::randn({kNumSamples, channels, size, size})}; }
at::Tensor ids(std::int64_t length) { return torch::randint(13, {kNumSamples, length}, torch::kLong); }
at::Tensor classes() { return torch::randint(5, {kNumSamples}, torch::kLong); }

std::vector<Case> cases() {
  const auto lm = [](bool tied) {
    return transformer_lm(
        TransformerLmOptions(13, 3).width(8).feed_forward_width(16).num_heads(2).tie_embeddings(tied));
  };
  const auto translation = [](bool tied) {
    return translation_transformer(TranslationTransformerOptions(3, 16, 2)
                                       .width(8)
                                       .vocabulary_size(13)
                                       .tie_embeddings(tied)
                                       .scale_feed_forward(true)
                                       .logit_clip(2));
  };
  const auto two_texts = [] { return Tensors{ids(6), ids(7)}; };
  return {
      {"amoebanet",
       [] {
         return amoebanet_d(AmoebaNetOptions(3, 8).num_classes(5).in_channels(1).stem_stride(1).stem_reductions(1));
       },
       [] { return images(1, 12); }, classes, class_loss},
      {"resnet18", [] { return resnet18(5); }, [] { return images(3, 33); }, classes, class_loss},
      {"resnet50", [] { return resnet50(5); }, [] { return images(3, 33); }, classes, class_loss},
      {"resnet_cifar", [] { return resnet_cifar(ResNetCifarOptions(14).num_classes(5)); }, [] { return images(3, 8); },
       classes, class_loss},
      {"resnet_cifar_with_plain_batch_norm",
       [] { return resnet_cifar(ResNetCifarOptions(8).num_classes(5).deferred_batch_norm(false)); },
       [] { return images(3, 8); }, classes, class_loss},
      {"unet", [] { return unet(UNetOptions(2, 2, 4)); }, [] { return images(3, 10); },
       [] {
         return torch::randn({kNumSamples, 1, 10, 10});
       },
       [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); }},
      {"transformer_lm", [lm] { return lm(false); }, [] { return Tensors{ids(6)}; }, [] { return ids(6); }, token_loss},
      {"transformer_lm_tied", [lm] { return lm(true); }, [] { return Tensors{ids(6)}; }, [] { return ids(6); },
       token_loss},
      {"translation", [translation] { return translation(false); }, two_texts, [] { return ids(7); }, token_loss},
      {"translation_tied", [translation] { return translation(true); }, two_texts, [] { return ids(7); }, token_loss},
  };
}

using Values = std::map<std::string, at::Tensor>;

// Two steps of Adam, and everything that they leave: parameters, buffers and losses. `train_step` runs one of them.
Values train(const Case& test, const torch::nn::Module& model,
             const std::function<at::Tensor(const Tensors& inputs, const Tensors& targets)>& train_step) {
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(0.01));
  torch::manual_seed(2);
  Values left;
  for (int step = 0; step < 2; ++step) {
    const Tensors inputs = test.inputs();
    const Tensors targets = {test.target()};
    optimizer.zero_grad();
    left["loss " + std::to_string(step)] = train_step(inputs, targets);
    optimizer.step();
  }
  for (const auto& item : model.named_parameters()) left[item.key()] = item.value().detach();
  for (const auto& item : model.named_buffers()) left[item.key()] = item.value();
  return left;
}

PipelineImpl::Loss loss_of(const Case& test) {
  return [loss = test.loss](const Tensors& outputs, const Tensors& targets) {
    return LossValue(loss(outputs.front(), targets.front()));
  };
}

Values train_plainly(const Case& test) {
  PlainChain plain(test.make(), PipelineOptions(1).num_micro_batches(4).seed(11));
  return train(test, plain.model(), [&](const Tensors& inputs, const Tensors& targets) {
    return plain.train_step(inputs, targets, loss_of(test));
  });
}

Values train_pipelined(const Case& test, PipelineOptions options) {
  const LayerChain chain = test.make();
  std::vector<int> balance(options.num_stages(), chain.size() / options.num_stages());
  balance.back() += chain.size() % options.num_stages();
  Pipeline pipeline(chain, options.num_micro_batches(4).seed(11).balance(balance));
  return train(test, *pipeline, [&](const Tensors& inputs, const Tensors& targets) {
    return pipeline->train_step(inputs, targets, loss_of(test)).loss;
  });
}

class ModelTransparency : public ::testing::TestWithParam<Case> {};

TEST_P(ModelTransparency, EveryNumberOfStagesTrainsToTheSameBits) {
  at::set_num_threads(1);
  const Values expected = train_plainly(GetParam());
  ASSERT_TRUE(expected.at("loss 1").isfinite().item<bool>());
  std::vector<int> numbers{1, 2, 4};
  const int num_layers = GetParam().make().size();
  if (num_layers <= 11) numbers.push_back(num_layers);  // cut everywhere
  for (const int num_stages : numbers) {
    const Recompute recompute = num_stages == 2 ? Recompute::kAlways : Recompute::kNever;
    SCOPED_TRACE(std::to_string(num_stages) + " stages");
    expect_same_values(train_pipelined(GetParam(), PipelineOptions(num_stages).recompute(recompute)), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ModelTransparency, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace gpipe::test
