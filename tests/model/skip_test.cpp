#include "gpipe/model/skip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/layer_scope.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// Stashes and pops the names it is told to; a popped tensor is added to the input.
struct SkipsImpl : torch::nn::Module {
  SkipsImpl(std::vector<std::string> stashes, std::vector<std::string> pops, double factor = 1)
      : stashes_(std::move(stashes)), pops_(std::move(pops)), factor_(factor) {}
  at::Tensor forward(at::Tensor input) {
    for (const std::string& name : pops_) input = input + pop(name);
    for (const std::string& name : stashes_) stash(name, input);
    return input * factor_;
  }
  std::vector<std::string> stashes_;
  std::vector<std::string> pops_;
  double factor_;
};
TORCH_MODULE(Skips);

using Names = std::vector<std::string>;

at::Tensor sum_loss(const at::Tensor& output, const at::Tensor& /*target*/) { return output.sum(); }

StepResult train(LayerChain chain, int num_stages = 2) {
  const int size = chain.size();
  std::vector<int> balance(num_stages, 1);
  balance.back() = size - num_stages + 1;
  Pipeline pipeline(chain, PipelineOptions(num_stages).num_micro_batches(2).balance(balance));
  return pipeline->train_step(torch::ones({4, 3}, torch::requires_grad()), torch::ones({4}), sum_loss);
}

TEST(SkipTest, WorksOutsideAPipeline) {
  torch::nn::Sequential model(Skips(Names{"a"}, Names{}, 2), Skips(Names{}, Names{}, 3), Skips(Names{}, Names{"a"}));
  const at::Tensor input = torch::ones({2}, torch::requires_grad());
  const at::Tensor output = model->forward(input);
  EXPECT_TRUE(test::same_bits(output, torch::full({2}, 7.0)));
  output.sum().backward();
  EXPECT_TRUE(test::same_bits(input.grad(), torch::full({2}, 7.0)));
}

TEST(SkipTest, PoppingWhatNobodyStashedIsAnErrorThatNamesIt) {
  EXPECT_THAT([] { pop("shortcut"); }, ThrowsMessage<SkipError>(HasSubstr("\"shortcut\"")));
  stash("once", torch::ones({1}));
  pop("once");
  EXPECT_THROW(pop("once"), SkipError);
}

TEST(SkipTest, NamespacesKeepEqualNamesApartAndNest) {
  stash("x", torch::full({1}, 0.0));
  {
    const SkipNamespace outer("outer");
    stash("x", torch::full({1}, 1.0));
    {
      const SkipNamespace inner("inner");
      stash("x", torch::full({1}, 2.0));
      EXPECT_EQ(pop("x").item<float>(), 2);
    }
    EXPECT_EQ(pop("x").item<float>(), 1);
  }
  EXPECT_EQ(pop("x").item<float>(), 0);
}

TEST(SkipTest, ATensorThatIsChangedAfterItWasStashedIsRefused) {
  at::Tensor tensor = torch::ones({2});
  stash("changed", tensor);
  tensor.add_(1);
  EXPECT_THAT([] { pop("changed"); },
              ThrowsMessage<SkipError>(AllOf(HasSubstr("changed in place"), HasSubstr("clone()"))));
}

TEST(SkipTest, EveryViolationIsListedBeforeTheFirstStep) {
  LayerChain chain;
  chain.add<Skips>("first", Names{"twice", "lost"}, Names{});
  chain.add<Skips>("second", Names{"twice"}, Names{"early"});
  chain.add<Skips>("third", Names{"early"}, Names{"twice"});
  chain.add<Skips>("fourth", Names{}, Names{"twice", "never"});
  EXPECT_THAT(
      [&] { train(chain); },
      ThrowsMessage<SkipError>(AllOf(HasSubstr("\"twice\" is stashed by layer 0 (first) and again by layer 1 (second)"),
                                     HasSubstr("\"early\" is popped by layer 1 (second), but not stashed before"),
                                     HasSubstr("\"twice\" is popped by layer 2 (third) and again by layer 3 (fourth)"),
                                     HasSubstr("\"never\" is popped by layer 3 (fourth), but not stashed before"),
                                     HasSubstr("\"lost\" is stashed by layer 0 (first), but never popped"),
                                     HasSubstr("\"early\" is stashed by layer 2 (third), but never popped"))));
}

TEST(SkipTest, ABlockIsReusedInANamespaceOfItsOwn) {
  LayerChain chain;
  for (const std::string block : {"a", "b"}) {
    chain.add<Skips>(block + "1", Names{"x"}, Names{}).isolate(block + "1", block);
    chain.add<Skips>(block + "2", Names{}, Names{"x"}).isolate(block + "2", block);
  }
  EXPECT_EQ(train(chain, 4).loss.item<float>(), 4 * 3 * 4 / 2);
  EXPECT_THROW(chain.isolate("c", "c"), InvalidArgument);
}

TEST(SkipTest, AReusedBlockWithoutANamespaceIsAViolation) {
  LayerChain chain;
  chain.add<Skips>("a1", Names{"x"}, Names{}).add<Skips>("b1", Names{"x"}, Names{});
  chain.add<Skips>("b2", Names{}, Names{"x"}).add<Skips>("a2", Names{}, Names{"x"});
  EXPECT_THROW(train(chain), SkipError);
}

TEST(SkipTest, SkipsThatComeAndGoWithTheBatchAreRefused) {
  struct SometimesImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& input) {
      if (input.size(1) == 3) stash("sometimes", input);
      return input;
    }
  };
  struct PopSometimesImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& input) { return input + (input.size(1) < 5 ? pop("sometimes") : input); }
  };
  torch::nn::Sequential model(std::make_shared<SometimesImpl>(), std::make_shared<PopSometimesImpl>());
  Pipeline pipeline(model, PipelineOptions(2).num_micro_batches(2).balance({1, 1}));
  pipeline->train_step(torch::ones({4, 3}, torch::requires_grad()), torch::ones({4}), sum_loss);
  EXPECT_THAT(
      [&] {
        pipeline->train_step(torch::ones({4, 4}, torch::requires_grad()), torch::ones({4}), sum_loss);
      },
      ThrowsMessage<ActionError>(HasSubstr("\"sometimes\"")));
  EXPECT_NO_THROW(pipeline->train_step(torch::ones({4, 3}, torch::requires_grad()), torch::ones({4}), sum_loss));
}

// Three uses of one tensor: what comes back from the skip is added where the plain model adds it.
TEST(SkipTest, TheGradientsOfAStashedTensorAddUpInTheSameOrderHoweverItIsSplit) {
  LayerChain chain;
  chain.add<torch::nn::Linear>("in", 3, 8);
  chain.add<Skips>("stash", Names{"x", "y"}, Names{}, 0.3);
  chain.add<torch::nn::Linear>("middle", 8, 8);
  chain.add<Skips>("pop_x", Names{}, Names{"x"}, 0.7);
  chain.add<torch::nn::Linear>("late", 8, 8);
  chain.add<Skips>("pop_y", Names{}, Names{"y"}, 0.1);
  const at::Tensor input = torch::randn({4, 3});
  std::vector<Tensors> gradients;
  for (const std::vector<int>& balance : {std::vector<int>{6}, {1, 5}, {2, 4}, {3, 3}, {2, 2, 2}, {1, 1, 1, 1, 1, 1}}) {
    Pipeline pipeline(chain, PipelineOptions(static_cast<int>(balance.size())).num_micro_batches(2).balance(balance));
    pipeline->train_step(input, torch::ones({4}),
                         [](const at::Tensor& output, const at::Tensor&) { return output.pow(2).mean(); });
    Tensors grads;
    for (const at::Tensor& parameter : pipeline->parameters()) grads.push_back(parameter.grad());
    gradients.push_back(grads);
    for (std::size_t index = 0; index < grads.size(); ++index) {
      EXPECT_TRUE(test::same_bits(grads[index], gradients.front()[index])) << balance.size() << " stages, " << index;
    }
  }
}

// Between two layers of the same skip; throws in the micro-batch it is told to, in the forward, the recompute or the
// backward.
enum class Where { kNowhere, kForward, kRecompute, kBackward };
struct Sabotage {
  int layer = -1;
  int micro_batch = -1;
  Where where = Where::kNowhere;
};

struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) { return input.clone(); }
  static Tensors backward(torch::autograd::AutogradContext*, Tensors) { throw std::runtime_error("on purpose"); }
};

struct SkippingImpl : torch::nn::Module {
  SkippingImpl(const Sabotage* sabotage, std::string stashes, std::string pops)
      : sabotage_(sabotage), stashes_(std::move(stashes)), pops_(std::move(pops)) {}
  at::Tensor forward(const at::Tensor& input) {
    const LayerRun& run = *LayerScope::current();
    at::Tensor output = linear(input);
    if (!pops_.empty()) output = output + pop(pops_);
    const bool here = run.layer == sabotage_->layer && run.micro_batch == sabotage_->micro_batch;
    if (here && sabotage_->where == (run.recomputing ? Where::kRecompute : Where::kForward)) {
      throw std::runtime_error("on purpose");
    }
    if (!stashes_.empty()) stash(stashes_, output);
    return here && sabotage_->where == Where::kBackward ? ThrowInBackward::apply(output) : output;
  }
  const Sabotage* sabotage_;
  std::string stashes_;
  std::string pops_;
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 3));
};
TORCH_MODULE(Skipping);

TEST(SkipTest, AThrowInAnyStageThatStashesOrPopsEndsTheStepAndLeavesThePipelineUsable) {
  Sabotage sabotage;
  LayerChain chain;
  chain.add<Skipping>("a", &sabotage, "x", "").add<Skipping>("b", &sabotage, "y", "");
  chain.add<Skipping>("c", &sabotage, "z", "x").add<Skipping>("d", &sabotage, "", "y");
  chain.add<Skipping>("e", &sabotage, "", "z");
  const at::Tensor input = torch::ones({4, 3});
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    Pipeline pipeline(chain, PipelineOptions(5)
                                 .num_micro_batches(4)
                                 .schedule(schedule)
                                 .balance({1, 1, 1, 1, 1})
                                 .recompute(Recompute::kAlways));
    const at::Tensor expected = pipeline->train_step(input, torch::ones({4}), sum_loss).loss;
    for (sabotage.layer = 0; sabotage.layer < 5; ++sabotage.layer) {
      for (sabotage.micro_batch = 0; sabotage.micro_batch < 4; ++sabotage.micro_batch) {
        for (const Where where : {Where::kForward, Where::kRecompute, Where::kBackward}) {
          // In 1f1b the last stage runs each backward right after its forward, and has nothing to recompute.
          if (where == Where::kRecompute && schedule == "1f1b" && sabotage.layer == 4) continue;
          SCOPED_TRACE(testing::Message() << schedule << " layer " << sabotage.layer << " micro-batch "
                                          << sabotage.micro_batch << " " << static_cast<int>(where));
          sabotage.where = where;
          try {
            pipeline->train_step(input, torch::ones({4}), sum_loss);
            ADD_FAILURE() << "nothing was thrown";
          } catch (const ActionError& error) {
            EXPECT_EQ(error.action().stage, sabotage.layer);
            EXPECT_EQ(error.action().micro_batch, sabotage.micro_batch);
          }
          sabotage.where = Where::kNowhere;
          EXPECT_TRUE(test::same_bits(pipeline->train_step(input, torch::ones({4}), sum_loss).loss, expected));
        }
      }
    }
  }
}

}  // namespace
}  // namespace gpipe
