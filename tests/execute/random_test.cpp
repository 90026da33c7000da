// Every operation that draws: a function of seed, step, layer and micro-batch, in forward and again in recompute.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "gpipe/execute/pipeline.h"
#include "tests/execute/plain_chain.h"
#include "tests/model/same_bits.h"

namespace gpipe {
namespace {

using torch::nn::Linear;

// Draws in one way, and makes the numbers matter.
struct DrawImpl : torch::nn::Module {
  explicit DrawImpl(std::function<at::Tensor(const at::Tensor&)> draw_) : draw(std::move(draw_)) {}
  at::Tensor forward(const at::Tensor& input) { return linear(input) * (draw(input) + 1); }
  const std::function<at::Tensor(const at::Tensor&)> draw;
  Linear linear = register_module("linear", Linear(6, 6));
};
TORCH_MODULE(Draw);

using Draws = std::function<at::Tensor(const at::Tensor&)>;

const std::vector<std::pair<const char*, Draws>>& ways_to_draw() {
  static const std::vector<std::pair<const char*, Draws>> ways = {
      {"dropout", [](const at::Tensor& x) { return at::dropout(x, 0.3, true); }},
      {"dropout_",
       [](const at::Tensor& x) {
         at::Tensor ones = torch::ones_like(x);
         return at::dropout_(ones, 0.3, true);
       }},
      {"native_dropout", [](const at::Tensor& x) { return std::get<0>(at::native_dropout(x, 0.3, true)); }},
      {"alpha_dropout", [](const at::Tensor& x) { return at::alpha_dropout(x, 0.3, true); }},
      {"feature_dropout",
       [](const at::Tensor& x) { return at::feature_dropout(x.unsqueeze(2), 0.3, true).squeeze(2); }},
      {"bernoulli", [](const at::Tensor& x) { return at::bernoulli(torch::sigmoid(x.detach())); }},
      {"bernoulli_", [](const at::Tensor& x) { return torch::empty_like(x).bernoulli_(0.4); }},
      {"normal_", [](const at::Tensor& x) { return torch::empty_like(x).normal_(); }},
      {"uniform_", [](const at::Tensor& x) { return torch::empty_like(x).uniform_(); }},
      {"exponential_", [](const at::Tensor& x) { return torch::empty_like(x).exponential_(); }},
      {"random_", [](const at::Tensor& x) { return torch::empty_like(x).random_(5); }},
      {"rand_like", [](const at::Tensor& x) { return torch::rand_like(x); }},
      {"randn", [](const at::Tensor& x) { return torch::randn(x.sizes()); }},
      {"randint", [](const at::Tensor& x) { return torch::randint(9, x.sizes()).to(at::kFloat); }},
      {"randperm", [](const at::Tensor& x) { return torch::randperm(x.size(1)).to(at::kFloat).expand_as(x); }},
      {"multinomial",
       [](const at::Tensor& x) {
         return at::multinomial(torch::softmax(x.detach(), 1), 6, /*replacement=*/true).to(at::kFloat);
       }},
      {"poisson", [](const at::Tensor& x) { return at::poisson(x.detach().abs()); }},
      {"rrelu", [](const at::Tensor& x) { return at::rrelu(x, 0.1, 0.9, true); }},
      {"gumbel_softmax", [](const at::Tensor& x) { return torch::nn::functional::gumbel_softmax(x); }},
  };
  return ways;
}

at::Tensor squared_error(const Tensors& outputs, const Tensors& targets) {
  return torch::mse_loss(outputs[0], targets[0]);
}

LayerChain make_chain(const Draws& draw) {
  return LayerChain().add<Draw>("0", draw).add<Draw>("1", draw).add<Linear>("2", 6, 6);
}

TEST(RandomStream, EveryWayToDrawTrainsTheBitsOfThePlainRun) {
  at::set_num_threads(1);
  torch::manual_seed(9);
  const Tensors input = {torch::randn({7, 6})};
  const Tensors target = {torch::randn({7, 6})};
  for (const auto& [way, draw] : ways_to_draw()) {
    const auto make = [draw = draw] { return make_chain(draw); };
    for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
      SCOPED_TRACE(std::string(way) + " recompute " + name(recompute));
      PipelineOptions options = PipelineOptions(3).num_micro_batches(4).recompute(recompute);
      test::expect_transparent({make, input, target, squared_error, options}, options);
    }
  }
}

TEST(RandomStream, DiffersBySeedStepLayerAndMicroBatch) {
  torch::manual_seed(9);
  std::vector<at::Tensor> drawn;
  std::mutex mutex;
  const Draws draw = [&](const at::Tensor& x) {
    const at::Tensor numbers = torch::rand({8});
    const std::lock_guard<std::mutex> lock(mutex);
    drawn.push_back(numbers);
    return torch::zeros_like(x);
  };
  for (const std::uint64_t seed : {1, 2}) {
    const int last = make_chain(draw).size() - 2;
    Pipeline pipeline(make_chain(draw), PipelineOptions(3).num_micro_batches(4).seed(seed).balance({1, 1, last}));
    const std::vector<at::Tensor> of_other_seeds = drawn;
    for (int step = 0; step < 3; ++step) {
      pipeline->train_step(Tensors{torch::ones({8, 6})}, Tensors{torch::ones({8, 6})}, squared_error);
      if (step == 0) drawn = of_other_seeds;  // its trial draws what it draws itself
    }
  }
  ASSERT_EQ(drawn.size(), 32U);  // 2 seeds, 2 steps, 2 layers, 4 micro-batches
  for (std::size_t a = 0; a < drawn.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) EXPECT_FALSE(test::same_bits(drawn[a], drawn[b])) << a << " and " << b;
  }
}

// The trial before the first step draws from it, too.
TEST(RandomStream, AGeneratorOfTheLayersOwnIsLeftAlone) {
  at::Generator own = at::detail::createCPUGenerator(5);
  at::Generator same = at::detail::createCPUGenerator(5);
  torch::rand({8}, same);
  const at::Tensor expected = torch::rand({8}, same);
  at::Tensor drawn;
  struct OwnImpl : torch::nn::Module {
    OwnImpl(at::Generator generator_, at::Tensor* drawn_) : generator(std::move(generator_)), drawn(drawn_) {}
    at::Tensor forward(const at::Tensor& input) {
      *drawn = torch::rand({8}, generator);
      return input;
    }
    at::Generator generator;
    at::Tensor* drawn;
  };
  torch::nn::Sequential model;
  model->push_back(Linear(6, 6));
  model->push_back(std::make_shared<OwnImpl>(own, &drawn));
  Pipeline pipeline(LayerChain(model), PipelineOptions(2).num_micro_batches(1).balance({1, 1}));
  pipeline->forward(torch::ones({2, 6}));
  EXPECT_TRUE(test::same_bits(drawn, expected));
}

}  // namespace
}  // namespace gpipe
