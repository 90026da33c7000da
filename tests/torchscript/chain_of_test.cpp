#include "gpipe/torchscript/chain_of.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "gpipe/error.h"
#include "tests/execute/plain_chain.h"
#include "tests/torchscript/script_modules.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// A residual block, as a C++ program would write it.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int channels)
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 3).padding(1)))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(channels))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 3).padding(1)))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(channels))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::relu(norm2(conv2(torch::relu(norm1(conv1(x))))) + x); }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl()
      : stem(register_module("stem", torch::nn::Conv2d(3, 4, 3))),
        block1(register_module("block1", Block(4))),
        block2(register_module("block2", Block(4))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))),
        head(register_module("head", torch::nn::Linear(4, 5))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor features = block2(block1(torch::relu(stem(x))));
    return head(dropout(features.mean({2, 3})));
  }
  torch::nn::Conv2d stem;
  Block block1;
  Block block2;
  torch::nn::Dropout dropout;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

at::Tensor train_once(const std::function<Tensors(Tensors)>& forward, const at::Tensor& input, int seed) {
  torch::manual_seed(seed);
  at::Tensor loss = test::weighted_sum(forward({input}));
  loss.backward();
  return loss.detach();
}

TEST(ChainOf, TrainsToTheBytesOfTheModule) {
  torch::manual_seed(1);
  Net whole;
  Net parts;
  for (const auto& [name, tensor] : std::as_const(*whole).named_parameters().pairs()) {
    parts->named_parameters()[name].set_data(tensor.detach().clone());
  }
  const at::Tensor input = torch::randn({4, 3, 8, 8});
  const LayerChain chain = chain_of(parts, input);
  EXPECT_GE(chain.size(), 6);
  for (int step = 0; step < 2; ++step) {
    const at::Tensor expected =
        train_once([&](const Tensors& tensors) { return Tensors{whole->forward(tensors[0])}; }, input, 5 + step);
    const auto forward = [&](Tensors tensors) {
      for (int layer = 0; layer < chain.size(); ++layer) tensors = chain.build(layer, 0).forward(std::move(tensors));
      return tensors;
    };
    test::expect_same_bits(train_once(forward, input, 5 + step), expected, "loss");
    test::expect_same_bits(*parts, *whole);
  }
}

TEST(ChainOf, IsTransparent) {
  test::Problem problem;
  problem.make = [] {
    torch::manual_seed(1);
    return chain_of(Net(), torch::randn({2, 3, 6, 6}));
  };
  problem.inputs = {torch::randn({4, 3, 6, 6})};
  problem.targets = {torch::zeros({4, 1})};
  problem.loss = [](const Tensors& outputs, const Tensors& /*targets*/) { return test::weighted_sum(outputs); };
  for (const int num_stages : {1, 2, 4}) {
    SCOPED_TRACE(num_stages);
    test::expect_transparent(problem, PipelineOptions(num_stages).num_micro_batches(4));
  }
}

TEST(ChainOf, LeavesTheModuleAndTheGeneratorAsTheyWere) {
  Net net;
  torch::manual_seed(3);
  const at::Tensor expected = torch::rand({1});
  torch::manual_seed(3);
  chain_of(net, torch::ones({2, 3, 6, 6}));
  test::expect_same_bits(torch::rand({1}), expected, "the next draw");
  EXPECT_EQ(net->block1->norm1->num_batches_tracked.item<std::int64_t>(), 0);
}

TEST(ChainOf, RunsInTheModeThatItWasMadeIn) {
  Net net;
  const at::Tensor input = torch::randn({2, 3, 6, 6});
  const Layer first = chain_of(net, input).build(0, /*seed=*/0);
  first.module->eval();
  EXPECT_THAT(
      [&] { first.forward({input}); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("operations of training"), HasSubstr("chain_of after eval()"))));
  net->eval();
  const LayerChain chain = chain_of(net, input);
  Tensors tensors = {input};
  for (int layer = 0; layer < chain.size(); ++layer) tensors = chain.build(layer, 0).forward(std::move(tensors));
  test::expect_same_bits(tensors[0], net->forward(input), "evaluation");
}

// What is not in its tensors.
struct ByNumberOfRowsImpl : torch::nn::Module {
  ByNumberOfRowsImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x).view({x.size(0), 2, 2}); }
  torch::nn::Linear linear;
};
TORCH_MODULE(ByNumberOfRows);

struct ByValueImpl : torch::nn::Module {
  ByValueImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return ++num_calls % 2 == 0 ? linear(x) : linear(x) * 2; }
  torch::nn::Linear linear;
  int num_calls = 0;
};
TORCH_MODULE(ByValue);

struct OwnGeneratorImpl : torch::nn::Module {
  OwnGeneratorImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x) + torch::rand({4}, generator); }
  torch::nn::Linear linear;
  at::Generator generator = at::detail::createCPUGenerator(1);
};
TORCH_MODULE(OwnGenerator);

TEST(ChainOf, RefusesWhatItsRecordDoesNotKnow) {
  const at::Tensor sample = torch::ones({2, 4});
  const auto says = [](const char* text) {
    return ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(text), Not(HasSubstr("\n"))));
  };
  EXPECT_THAT([&] { chain_of(ByNumberOfRows(), sample); }, says("a sample of one row more"));
  EXPECT_THAT([&] { chain_of(ByValue(), sample); }, says("other results than the module on the sample"));
  EXPECT_THAT([&] { chain_of(OwnGenerator(), sample); }, says("write sizes as -1"));
}

TEST(ChainOf, PassesOnWhatTheModuleThrows) { EXPECT_THROW(chain_of(Net(), torch::ones({2, 4})), c10::Error); }

}  // namespace
}  // namespace gpipe
