// Steps in blocks: the bits of the optimizers of libtorch, and nothing of a large parameter's size in between.
#include "gpipe/model/update_in_blocks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "gpipe/model/memory_account.h"
#include "gpipe/model/optimizer_slots.h"
#include "tests/model/same_bits.h"

namespace gpipe::test {
namespace {

using detail::UpdateInBlocks;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

constexpr std::int64_t kBlock = UpdateInBlocks::kBlockElements;

// With what is updated in blocks, what is not, and tails of all kinds.
std::vector<at::Tensor> some_parameters() {
  torch::manual_seed(1);
  std::vector<at::Tensor> parameters = {torch::randn({3 * kBlock + 37}), torch::randn({kBlock + 1}),
                                        torch::randn({2 * kBlock}),      torch::randn({7}),
                                        torch::randn({401, 3, 211}),     torch::randn({517, 257}).t(),
                                        torch::randn({kBlock}),          torch::randn({kBlock + 5}, torch::kFloat64),
                                        torch::randn({kBlock + 9})};
  for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  return parameters;
}

// All but the last have gradients.
void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(step));
  for (std::size_t index = 0; index + 1 < parameters.size(); ++index) {
    parameters[index].mutable_grad() = torch::randn_like(parameters[index].detach());
  }
}

template <typename Optimizer, typename Options>
void expect_same_bits_as_whole(const Options& of_first, const Options& of_others) {
  at::set_num_threads(1);
  const auto groups_of = [&](const std::vector<at::Tensor>& parameters) {
    Groups groups;
    groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 2),
                        std::make_unique<Options>(of_first));
    groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 2, parameters.end()),
                        std::make_unique<Options>(of_others));
    return groups;
  };
  const std::vector<at::Tensor> expected = some_parameters();
  const std::vector<at::Tensor> got = some_parameters();
  Optimizer whole(groups_of(expected), of_others);
  Optimizer blocks(groups_of(got), of_others);
  UpdateInBlocks update([&](Groups part) { return std::make_unique<Optimizer>(std::move(part), of_others); });
  for (int step = 0; step < 4; ++step) {
    for (const auto* parameters : {&expected, &got}) set_gradients(*parameters, step);
    whole.step();
    update.step(blocks);
    for (torch::optim::Optimizer* each :
         {static_cast<torch::optim::Optimizer*>(&whole), static_cast<torch::optim::Optimizer*>(&blocks)}) {
      for (auto& group : each->param_groups()) group.options().set_lr(group.options().get_lr() * 0.9);
    }
  }
  for (std::size_t index = 0; index < expected.size(); ++index) {
    EXPECT_TRUE(same_bits(got[index], expected[index])) << index;
    ASSERT_EQ(got[index].grad().defined(), expected[index].grad().defined()) << index;
    if (got[index].grad().defined()) {
      EXPECT_TRUE(same_bits(got[index].grad(), expected[index].grad())) << index;
    }
    EXPECT_EQ(got[index]._version() > 0, expected[index]._version() > 0) << index;
  }
  const auto slots = detail::optimizer_slots(blocks);
  const auto slots_of_whole = detail::optimizer_slots(whole);
  ASSERT_EQ(slots.size(), slots_of_whole.size());
  for (std::size_t index = 0; index < slots.size(); ++index) {
    EXPECT_EQ(slots[index].name, slots_of_whole[index].name);
    EXPECT_TRUE(same_bits(slots[index].state, slots_of_whole[index].state)) << index;
  }
}

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

TEST(UpdateInBlocksTest, StepsAsOptimizersOfLibtorchDo) {
  expect_same_bits_as_whole<torch::optim::Adam>(AdamOptions(0.01).amsgrad(true).weight_decay(0.1), AdamOptions(0.02));
  expect_same_bits_as_whole<torch::optim::AdamW>(AdamWOptions(0.01).betas(std::make_tuple(0.8, 0.9)),
                                                 AdamWOptions(0.02).amsgrad(true));
  expect_same_bits_as_whole<torch::optim::RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true),
                                                   RMSpropOptions(0.01).weight_decay(0.1));
  expect_same_bits_as_whole<torch::optim::Adagrad>(AdagradOptions(0.05).lr_decay(0.1),
                                                   AdagradOptions(0.05).weight_decay(0.1));
  expect_same_bits_as_whole<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01),
                                               SGDOptions(0.1));
}

// The most bytes of tensors that a step takes beside what is there before it.
template <typename Optimizer, typename Update>
std::int64_t peak_of_step(Optimizer& optimizer, const Update& update) {
  const auto account = std::make_shared<MemoryAccount>("step");
  const MemoryScope scope(account);
  update(optimizer);
  return account->peak_bytes();
}

TEST(UpdateInBlocksTest, TakesNothingOfAParametersSize) {
  at::set_num_threads(1);
  const at::Tensor parameter = torch::randn({20 * kBlock}, torch::requires_grad());
  parameter.mutable_grad() = torch::randn({20 * kBlock});
  torch::optim::AdamW optimizer({parameter}, AdamWOptions(0.01));
  UpdateInBlocks update([](Groups part) { return std::make_unique<torch::optim::AdamW>(part, AdamWOptions(0.01)); });
  update.step(optimizer);  // makes the states
  const auto of_parameter = static_cast<std::int64_t>(parameter.nbytes());
  EXPECT_GE(peak_of_step(optimizer, [](auto& whole) { whole.step(); }), of_parameter);
  EXPECT_LE(peak_of_step(optimizer, [&](auto& whole) { update.step(whole); }), of_parameter / 5);
}

// One that libtorch does not know: it sees whole parameters only.
class Derived : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  at::Tensor step(LossClosure closure = nullptr) override {
    for (const at::Tensor& parameter : param_groups().front().params()) sizes().push_back(parameter.numel());
    return AdamW::step(std::move(closure));
  }
  static std::vector<std::int64_t>& sizes() {
    static std::vector<std::int64_t> sizes;
    return sizes;
  }
};

TEST(UpdateInBlocksTest, AnOptimizerOfSomebodyElseTakesItsOwnSteps) {
  at::set_num_threads(1);
  const at::Tensor parameter = torch::randn({3 * kBlock}, torch::requires_grad());
  parameter.mutable_grad() = torch::randn({3 * kBlock});
  Derived optimizer({parameter}, AdamWOptions(0.01));
  UpdateInBlocks update([](Groups part) { return std::make_unique<Derived>(part, AdamWOptions(0.01)); });
  for (int step = 0; step < 2; ++step) update.step(optimizer);
  EXPECT_EQ(Derived::sizes(), (std::vector<std::int64_t>{3 * kBlock, 3 * kBlock}));
}

TEST(UpdateInBlocksTest, AGraphThatNeedsTheWeightsOfBeforeIsRefusedAsEver) {
  at::set_num_threads(1);
  const at::Tensor parameter = torch::randn({3 * kBlock}, torch::requires_grad());
  torch::optim::AdamW optimizer({parameter}, AdamWOptions(0.01));
  UpdateInBlocks update([](Groups part) { return std::make_unique<torch::optim::AdamW>(part, AdamWOptions(0.01)); });
  for (int step = 0; step < 2; ++step) {
    parameter.mutable_grad() = torch::ones_like(parameter.detach());
    const at::Tensor loss = parameter.square().sum();
    update.step(optimizer);
    EXPECT_THROW(loss.backward(), c10::Error) << step;
  }
}

}  // namespace
}  // namespace gpipe::test
