// Split backward: the two parts give what the whole gives, byte for byte, do no work twice, and hold no more than they
// need.
#include "gpipe/model/split_backward.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/model/memory_account.h"
#include "tests/model/same_bits.h"

namespace gpipe::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A network with what it is given.
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  Tensors inputs;
  std::function<Tensors(Tensors)> forward;
};

template <typename Holder>
Network of_one(Holder module, at::Tensor input) {
  return {module.ptr(), {std::move(input)}, [module](const Tensors& given) mutable {
            return Tensors{module->forward(given.front())};
          }};
}

Network mlp() {
  return of_one(torch::nn::Sequential(torch::nn::Linear(6, 9), torch::nn::GELU(),
                                      torch::nn::LayerNorm(torch::nn::LayerNormOptions({9})), torch::nn::Linear(9, 5),
                                      torch::nn::Tanh()),
                torch::randn({7, 6}));
}

Network convolutions() {
  return of_one(torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
                                      torch::nn::BatchNorm2d(8), torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                                      torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).groups(2).bias(false)),
                                      torch::nn::GroupNorm(2, 8), torch::nn::ConvTranspose2d(8, 4, 2)),
                torch::randn({2, 3, 8, 8}));
}

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() { lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(5, 6).num_layers(2))); }
  at::Tensor forward(const at::Tensor& input) { return std::get<0>(lstm->forward(input)); }
  torch::nn::LSTM lstm{nullptr};
};
TORCH_MODULE(Recurrent);

Network recurrent() { return of_one(Recurrent(), torch::randn({4, 3, 5})); }

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    attention = register_module("attention", torch::nn::MultiheadAttention(8, 2));
    inner = register_module("inner", torch::nn::Linear(8, 16));
    outer = register_module("outer", torch::nn::Linear(16, 8));
    positions = register_parameter("positions", torch::randn({5, 1, 8}));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input + positions;
    const at::Tensor normed = norm->forward(x);
    x = x + std::get<0>(attention->forward(normed, normed, normed));
    return x + outer->forward(torch::relu(inner->forward(x)));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  torch::nn::Linear inner{nullptr}, outer{nullptr};
  at::Tensor positions;
};
TORCH_MODULE(Block);

Network block() { return of_one(Block(), torch::randn({5, 2, 8})); }

// One weight in three places, one of them through a view, and one that is frozen.
struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    weight = register_parameter("weight", torch::randn({6, 6}));
    frozen = register_parameter("frozen", torch::randn({6, 6}), /*requires_grad=*/false);
    scale = register_parameter("scale", torch::randn({6}));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor x = torch::tanh(input.matmul(weight)).matmul(frozen);
    return torch::tanh(x.matmul(weight.t()) * scale).matmul(weight.narrow(0, 0, 6)) + weight.sum(0);
  }
  at::Tensor weight, frozen, scale;
};
TORCH_MODULE(Shared);

Network shared() { return of_one(Shared(), torch::randn({4, 6})); }

// Two inputs, one of them indices, and two outputs, one of which is handed on as it came and one a parameter.
struct SeveralImpl : torch::nn::Module {
  SeveralImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(10, 6));
    linear = register_module("linear", torch::nn::Linear(6, 6));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Several);

Network several() {
  Several module;
  return {module.ptr(),
          {torch::randn({4, 6}), torch::randint(10, {4}, torch::kLong)},
          [module](const Tensors& given) mutable {
            return Tensors{module->linear->forward(given[0] + module->embedding->forward(given[1])), given[0],
                           module->linear->weight};
          }};
}

const std::map<std::string, Network (*)()>& networks() {
  static const std::map<std::string, Network (*)()> all = {{"mlp", mlp},
                                                           {"convolutions", convolutions},
                                                           {"recurrent", recurrent},
                                                           {"block", block},
                                                           {"shared", shared},
                                                           {"several", several}};
  return all;
}

Network make(const std::string& name) {
  torch::manual_seed(3);
  return networks().at(name)();
}

LayerGraph run_forward(const Network& network) {
  Tensors entries;
  std::vector<bool> requires_grad;
  for (const at::Tensor& input : network.inputs) {
    entries.push_back(input.clone());
    requires_grad.push_back(input.is_floating_point());
  }
  const std::shared_ptr<Boundary> boundary = Boundary::enter(entries, requires_grad);
  return {boundary, Roots(network.forward(std::move(entries)))};
}

Tensors output_grads(const Network& network) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(5);
  Tensors grads;
  for (const at::Tensor& output : network.forward(network.inputs)) grads.push_back(torch::randn_like(output));
  return grads;
}

// All gradients by name; those of the inputs by number.
std::map<std::string, at::Tensor> gradients(const Network& network, const Tensors& of_inputs) {
  std::map<std::string, at::Tensor> all;
  for (std::size_t index = 0; index < of_inputs.size(); ++index)
    all["input" + std::to_string(index)] = of_inputs[index];
  for (const auto& item : network.module->named_parameters()) all[item.key()] = item.value().grad();
  return all;
}

// Of two backwards, so that gradients are accumulated, too.
std::map<std::string, at::Tensor> whole(const std::string& name) {
  const Network network = make(name);
  Tensors of_inputs;
  for (int repeat = 0; repeat < 2; ++repeat) {
    LayerGraph graph = run_forward(network);
    graph.roots.backward_from(output_grads(network)).run();
    of_inputs = graph.boundary->take_grads();
  }
  return gradients(network, of_inputs);
}

// libtorch 2 has a fused LSTM, of oneDNN, whose backward is one operation: see SplitBackwardOfAFusedKernelTest.
class SplitBackwardTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    if (GetParam() == "recurrent") at::globalContext().setUserEnabledMkldnn(false);
  }
  void TearDown() override { at::globalContext().setUserEnabledMkldnn(true); }
};

TEST_P(SplitBackwardTest, BothPartsTogetherGiveTheBytesOfTheWhole) {
  const std::map<std::string, at::Tensor> expected = whole(GetParam());
  for (const DeferredWeights which : {DeferredWeights::kMatrices, DeferredWeights::kAll, DeferredWeights::kNone}) {
    for (const bool late : {false, true}) {
      SCOPED_TRACE(testing::Message() << "deferred " << static_cast<int>(which) << ", late " << late);
      const Network network = make(GetParam());
      SplitBackward split(which);
      Tensors of_inputs;
      std::vector<ReadyBackward> later;
      for (int repeat = 0; repeat < 2; ++repeat) {
        LayerGraph graph = run_forward(network);
        later.push_back(split.run_inputs(graph, output_grads(network)));
        of_inputs = graph.boundary->take_grads();
        if (!late) later.back().run();
      }
      if (late) {
        for (ReadyBackward& backward : later) backward.run();
      }
      EXPECT_THAT(split.unsplit_nodes(), IsEmpty());
      const std::map<std::string, at::Tensor> got = gradients(network, of_inputs);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, grad] : expected) EXPECT_TRUE(test::same_bits(got.at(name), grad)) << name;
    }
  }
}

TEST_P(SplitBackwardTest, WeightsGetTheirGradientsInTheSecondPartOnly) {
  const Network network = make(GetParam());
  LayerGraph graph = run_forward(network);
  ReadyBackward later = SplitBackward(DeferredWeights::kAll).run_inputs(graph, output_grads(network));
  EXPECT_TRUE(graph.boundary->take_grads().front().defined());
  for (const at::Tensor& parameter : network.module->parameters()) EXPECT_FALSE(parameter.grad().defined());
  ASSERT_FALSE(later.empty());
  later.run();
  for (const at::Tensor& parameter : network.module->parameters()) {
    EXPECT_EQ(parameter.grad().defined(), parameter.requires_grad());
  }
}

TEST(SplitBackwardOfAFusedKernelTest, TheFusedLstmRunsAtOnceAndIsNamed) {
  at::set_num_threads(1);
  const std::map<std::string, at::Tensor> expected = whole("recurrent");
  const Network network = make("recurrent");
  SplitBackward split(DeferredWeights::kMatrices);
  Tensors of_inputs;
  for (int repeat = 0; repeat < 2; ++repeat) {
    LayerGraph graph = run_forward(network);
    ReadyBackward later = split.run_inputs(graph, output_grads(network));
    of_inputs = graph.boundary->take_grads();
    later.run();
  }
  for (const std::string& node : split.unsplit_nodes()) EXPECT_THAT(node, testing::HasSubstr("Rnn"));
  const std::map<std::string, at::Tensor> got = gradients(network, of_inputs);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, grad] : expected) EXPECT_TRUE(test::same_bits(got.at(name), grad)) << name;
}

// How often libtorch's operations with these words in their names are called while it lives.
class CountedCalls {
 public:
  CountedCalls()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              const std::string name = function.name();
              for (const char* word :
                   {"aten::mm", "aten::bmm", "aten::convolution_backward", "aten::addmm",
                    "aten::native_layer_norm_backward", "aten::tanh_backward", "aten::embedding_dense_backward"}) {
                if (name == word) ++count();
              }
              return nullptr;
            }))) {}
  ~CountedCalls() { at::removeCallback(handle_); }
  static std::atomic<int>& count() {
    static std::atomic<int> number = 0;
    return number;
  }

 private:
  at::CallbackHandle handle_;
};

int count_calls(const std::function<void()>& work) {
  const CountedCalls counted;
  CountedCalls::count() = 0;
  work();
  return CountedCalls::count();
}

TEST_P(SplitBackwardTest, TheExpensiveOperationsRunOnce) {
  const Network network = make(GetParam());
  LayerGraph graph = run_forward(network);
  Tensors grads = output_grads(network);
  const int expected = count_calls([&] { graph.roots.backward_from(std::move(grads)).run(); });
  EXPECT_GT(expected, 0);
  for (const DeferredWeights which : {DeferredWeights::kMatrices, DeferredWeights::kAll}) {
    graph = run_forward(network);
    grads = output_grads(network);
    const int got = count_calls([&] { SplitBackward(which).run_inputs(graph, std::move(grads)).run(); });
    // A convolution is asked twice, each time for a part of its outputs; a layer norm, too, if its weight is deferred.
    const bool has_layer_norm = GetParam() == "mlp" || GetParam() == "block";
    const int num_twice = GetParam() == "convolutions" ? 3 : has_layer_norm && which == DeferredWeights::kAll ? 1 : 0;
    EXPECT_EQ(got, expected + num_twice) << static_cast<int>(which);
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, SplitBackwardTest,
                         ::testing::Values("mlp", "convolutions", "recurrent", "block", "shared", "several"),
                         [](const auto& test) { return test.param; });

TEST(SplitBackward, SmallParametersAreFinishedWithTheInput) {
  const Network network = make("mlp");
  LayerGraph graph = run_forward(network);
  const ReadyBackward later = SplitBackward(DeferredWeights::kMatrices).run_inputs(graph, output_grads(network));
  for (const auto& item : network.module->named_parameters()) {
    EXPECT_EQ(item.value().grad().defined(), item.value().dim() == 1) << item.key();
  }
  EXPECT_FALSE(later.empty());
}

TEST(SplitBackward, WithoutAnInputThatNeedsAGradientEverythingWaits) {
  const Network network = make("mlp");
  Tensors entries = network.inputs;
  const std::shared_ptr<Boundary> boundary = Boundary::enter(entries, {false});
  LayerGraph graph{boundary, Roots(network.forward(entries))};
  ReadyBackward later = SplitBackward(DeferredWeights::kMatrices).run_inputs(graph, output_grads(network));
  for (const at::Tensor& parameter : network.module->parameters()) EXPECT_FALSE(parameter.grad().defined());
  later.run();
  for (const at::Tensor& parameter : network.module->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST(SplitBackward, HoldsInBetweenOnlyWhatTheWeightsNeedAndNothingAfterwards) {
  constexpr std::int64_t kFloats = 64 * 256;
  torch::manual_seed(3);
  torch::nn::Sequential layers;
  for (int layer = 0; layer < 4; ++layer) {
    layers->push_back(torch::nn::Linear(256, 256));
    for (int repeat = 0; repeat < 3; ++repeat) layers->push_back(torch::nn::Tanh());
  }
  const Network network = of_one(layers, torch::randn({64, 256}));
  const Tensors grads = output_grads(network);
  for (const auto& parameter : network.module->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
  const auto account = std::make_shared<MemoryAccount>("stage 0", 0);
  const MemoryScope scope(account);
  LayerGraph graph = run_forward(network);
  EXPECT_EQ(account->live_bytes(), (1 + 12) * kFloats * 4);  // the input, and what the tanhs gave
  SplitBackward split(DeferredWeights::kMatrices);
  ReadyBackward later = split.run_inputs(graph, {grads.front().clone()});
  graph.boundary->take_grads();
  graph = {};
  // Of each linear layer its input, and the gradient of its output.
  EXPECT_EQ(account->live_bytes(), (4 + 4) * kFloats * 4);
  later.run();
  EXPECT_EQ(account->live_bytes(), 0);
}

// Counts its backwards.
struct Doubled : torch::autograd::Function<Doubled> {
  static int& num_backwards() {
    static int number = 0;
    return number;
  }
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight) {
    context->save_for_backward({input, weight});
    return 2 * input.matmul(weight);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& grads) {
    ++num_backwards();
    const Tensors saved = context->get_saved_variables();
    return {2 * grads[0].matmul(saved[1].t()), 2 * saved[0].t().matmul(grads[0])};
  }
};

struct WithDoubledImpl : torch::nn::Module {
  WithDoubledImpl() {
    linear = register_module("linear", torch::nn::Linear(6, 6));
    weight = register_parameter("weight", torch::randn({6, 6}));
  }
  at::Tensor forward(const at::Tensor& input) {
    return linear->forward(Doubled::apply(linear->forward(input), weight));
  }
  torch::nn::Linear linear{nullptr};
  at::Tensor weight;
};
TORCH_MODULE(WithDoubled);

TEST(SplitBackward, ACustomFunctionRunsOnceAndKeepsOnlyItsOwnWeightFromWaiting) {
  torch::manual_seed(3);
  WithDoubled module;
  const Network network = of_one(module, torch::randn({4, 6}));
  Doubled::num_backwards() = 0;
  LayerGraph graph = run_forward(network);
  graph.roots.backward_from(output_grads(network)).run();
  const std::map<std::string, at::Tensor> expected = gradients(network, graph.boundary->take_grads());
  EXPECT_EQ(Doubled::num_backwards(), 1);
  graph = run_forward(network);
  SplitBackward split(DeferredWeights::kMatrices);
  for (const at::Tensor& parameter : module->parameters()) parameter.mutable_grad().reset();
  ReadyBackward later = split.run_inputs(graph, output_grads(network));
  EXPECT_TRUE(module->weight.grad().defined());
  EXPECT_FALSE(module->linear->weight.grad().defined());
  later.run();
  EXPECT_EQ(Doubled::num_backwards(), 2);
  EXPECT_THAT(split.unsplit_nodes(), ElementsAre(HasSubstr("Doubled")));
  for (const auto& [name, grad] : gradients(network, graph.boundary->take_grads())) {
    EXPECT_TRUE(test::same_bits(grad, expected.at(name))) << name;
  }
}

TEST(SplitBackward, HooksOfTheUserRunOnce) {
  torch::manual_seed(3);
  torch::nn::Linear first(6, 6);
  torch::nn::Linear second(6, 6);
  int num_calls = 0;
  const Network network = {std::make_shared<torch::nn::Module>(), {torch::randn({4, 6})}, [&](const Tensors& given) {
                             const at::Tensor middle = first->forward(given.front());
                             if (middle.requires_grad()) {
                               middle.register_hook([&](const at::Tensor& grad) {
                                 ++num_calls;
                                 return 3 * grad;
                               });
                             }
                             return Tensors{second->forward(middle)};
                           }};
  LayerGraph graph = run_forward(network);
  graph.roots.backward_from(output_grads(network)).run();
  const at::Tensor expected = first->weight.grad().clone();
  first->weight.mutable_grad().reset();
  graph = run_forward(network);
  num_calls = 0;
  SplitBackward(DeferredWeights::kMatrices).run_inputs(graph, output_grads(network)).run();
  EXPECT_EQ(num_calls, 1);
  EXPECT_TRUE(test::same_bits(first->weight.grad(), expected));
}

// What a layer computes from its parameters once a step is part of the graphs of all micro-batches.
TEST(SplitBackward, NodesOverParametersOnlyAreNotCut) {
  for (const DeferredWeights which : {DeferredWeights::kMatrices, DeferredWeights::kAll}) {
    torch::manual_seed(3);
    const at::Tensor weight = torch::randn({6, 6}).requires_grad_();
    const at::Tensor bias = torch::randn({6}).requires_grad_();
    const at::Tensor input = torch::randn({4, 6});
    const auto run = [&](bool is_split) {
      const at::Tensor sum = weight + bias;
      SplitBackward split(which);
      std::vector<ReadyBackward> later;
      for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
        Tensors entries = {input * (micro_batch + 1)};
        const std::shared_ptr<Boundary> boundary = Boundary::enter(entries, {true});
        LayerGraph graph{boundary, Roots({torch::tanh(entries.front().matmul(sum))})};
        if (is_split) {
          later.push_back(split.run_inputs(graph, {torch::ones({4, 6})}));
        } else {
          graph.roots.backward_from({torch::ones({4, 6})}).run();
        }
      }
      for (ReadyBackward& backward : later) backward.run();
      return Tensors{std::exchange(weight.mutable_grad(), {}), std::exchange(bias.mutable_grad(), {})};
    };
    const Tensors expected = run(false);
    const Tensors got = run(true);
    EXPECT_TRUE(test::same_bits(got[0], expected[0]));
    EXPECT_TRUE(test::same_bits(got[1], expected[1]));
  }
}

TEST(SplitBackward, AnUndefinedGradientMeansZero) {
  const Network network = make("several");
  LayerGraph graph = run_forward(network);
  Tensors grads = output_grads(network);
  grads[0].reset();
  grads[2].reset();
  SplitBackward(DeferredWeights::kMatrices).run_inputs(graph, grads).run();
  EXPECT_TRUE(test::same_bits(graph.boundary->take_grads().front(), grads[1]));
  graph = run_forward(network);
  EXPECT_TRUE(SplitBackward(DeferredWeights::kMatrices).run_inputs(graph, Tensors(3)).empty());
}

}  // namespace
}  // namespace gpipe::detail
