// Several tensors between layers: of every kind, used by all or by some, and as many ways as the plain model allows.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <tuple>

#include "gpipe/execute/pipeline.h"
#include "tests/execute/plain_chain.h"

namespace gpipe {
namespace {

using test::expect_transparent;
using test::Problem;

at::Tensor squared_error(const Tensors& outputs, const Tensors& targets) {
  return torch::mse_loss(outputs.front(), targets.front());
}

Problem make_problem(std::function<LayerChain()> make, int num_samples = 7) {
  torch::manual_seed(9);
  return {std::move(make), {torch::randn({num_samples, 4})}, {torch::randn({num_samples, 4})}, squared_error};
}

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

// Values with gradient, integer ids, a boolean mask, values without gradient, and nothing.
using Mixed = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

struct SpreadImpl : torch::nn::Module {
  Mixed forward(const at::Tensor& input) {
    const at::Tensor values = linear(input);
    return {values, torch::argsort(input.detach(), std::int64_t{1}), input.detach() > 0, input.detach() * 0.5,
            at::Tensor()};
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Spread);

struct MixImpl : torch::nn::Module {
  Mixed forward(Mixed mixed) {
    const auto& [values, ids, mask, constant, nothing] = mixed;
    require(ids.scalar_type() == at::kLong && !ids.requires_grad(), "the ids changed their kind");
    require(mask.scalar_type() == at::kBool && !mask.requires_grad(), "the mask changed its kind");
    require(constant.is_floating_point() && !constant.requires_grad(), "the constant came to need a gradient");
    require(!nothing.defined(), "the undefined member is defined");
    const at::Tensor mixed_values = linear(values.gather(1, ids)).masked_fill(mask, 0.25) + constant;
    return {mixed_values, ids.flip({1}), mask.logical_not(), constant + 1, nothing};
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Mix);

struct JoinImpl : torch::nn::Module {
  at::Tensor forward(Mixed mixed) { return std::get<0>(mixed) * std::get<3>(mixed) + std::get<1>(mixed); }
};
TORCH_MODULE(Join);

LayerChain mixed_chain() {
  return LayerChain().add<Spread>("spread").add<Mix>("mix0").add<Mix>("mix1").add<Join>("join");
}

TEST(Tuple, IntegerBooleanConstantAndUndefinedMembersCrossEveryBoundary) {
  expect_transparent(make_problem(mixed_chain));
}

TEST(Tuple, TheModelsInputsMayBeOfAnyKind) {
  struct EntryImpl : torch::nn::Module {
    at::Tensor forward(Tensors inputs) {
      require(!inputs[2].defined(), "the undefined input is defined");
      return table(inputs[0]) + inputs[1].to(at::kFloat);
    }
    torch::nn::Embedding table = register_module("table", torch::nn::Embedding(10, 4));
  };
  struct Entry : torch::nn::ModuleHolder<EntryImpl> {
    using torch::nn::ModuleHolder<EntryImpl>::ModuleHolder;
  };
  Problem problem = make_problem([] { return LayerChain().add<Entry>("entry").add<torch::nn::Linear>("head", 4, 4); });
  problem.inputs = {torch::randint(10, {7}), torch::rand({7, 4}) > 0.5, at::Tensor()};
  expect_transparent(problem);
}

// x -> (f(x), g(x)) -> (f'(a), g'(b)), two branches side by side.
struct ForkImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input) { return {left(input), right(input)}; }
  torch::nn::Linear left = register_module("left", torch::nn::Linear(4, 4));
  torch::nn::Linear right = register_module("right", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Fork);

struct BranchesImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& a, const at::Tensor& b) {
    return {torch::tanh(left(a)), torch::tanh(right(b))};
  }
  torch::nn::Linear left = register_module("left", torch::nn::Linear(4, 4));
  torch::nn::Linear right = register_module("right", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Branches);

struct SecondImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& /*a*/, const at::Tensor& b) { return linear(b); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Second);

TEST(Tuple, TheLossMayUseOnlyTheSecondOutput) {
  Problem problem =
      make_problem([] { return LayerChain().add<Fork>("fork").add<Branches>("middle").add<Branches>("head"); });
  problem.loss = [](const Tensors& outputs, const Tensors& targets) {
    return torch::mse_loss(outputs.at(1), targets.front());
  };
  expect_transparent(problem);
}

TEST(Tuple, AMemberThatNoLaterLayerUsesGetsNoGradient) {
  expect_transparent(
      make_problem([] { return LayerChain().add<Fork>("fork").add<Branches>("middle").add<Second>("head"); }));
}

TEST(Tuple, SeveralTargetsGoToTheLossTogether) {
  Problem problem = make_problem([] { return LayerChain().add<Fork>("fork").add<Branches>("head"); });
  problem.targets = {torch::randn({7, 4}), torch::randint(4, {7}), at::Tensor()};
  problem.loss = [](const Tensors& outputs, const Tensors& targets) {
    require(targets.size() == 3 && !targets[2].defined(), "a target is missing");
    return torch::mse_loss(outputs[0], targets[0]) + torch::nll_loss(torch::log_softmax(outputs[1], 1), targets[1]);
  };
  expect_transparent(problem);
}

// Adds the rows of a table to its values.
struct LookUpImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input, const at::Tensor& table) {
    require(table.size(0) == 3, "the table was split");
    return {linear(input) + torch::softmax(input, 1).narrow(1, 0, 3).mm(table), table};
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(LookUp);

Problem replicated_problem() {
  Problem problem = make_problem([] { return LayerChain().add<LookUp>("first").add<LookUp>("second"); });
  problem.inputs.push_back(torch::randn({3, 4}));
  problem.options.replicated_inputs({1});
  return problem;
}

TEST(Tuple, AReplicatedInputGoesWholeToEveryMicroBatch) { expect_transparent(replicated_problem()); }

// x -> (a, a): one tensor under two names.
struct TwiceImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input) {
    const at::Tensor output = torch::tanh(linear(input));
    return {output, output};
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Twice);

// Three uses whose gradients are added in the order of the uses, whichever name each came under.
struct ThreeUsesImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor first = torch::exp(a) * 3;
    const at::Tensor second = torch::sin(b) * 1e4;
    const at::Tensor third = torch::sigmoid(a) * 1e-3;
    return linear(first + second + third);
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(ThreeUses);

// Hands its input on beside its output.
struct PassThroughImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input) { return {torch::exp(linear(input)), input}; }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(PassThrough);

TEST(Tuple, ALayerMayHandItsInputOnForSeveralUsesLater) {
  expect_transparent(make_problem([] {
    return LayerChain()
        .add<torch::nn::Linear>("entry", 4, 4)
        .add<PassThrough>("pass")
        .add<Branches>("middle")
        .add<ThreeUses>("uses")
        .add<torch::nn::Linear>("head", 4, 4);
  }));
}

// Outputs and gradients of the drop-in forward against the plain chain, in one micro-batch.
void expect_transparent_forward(const std::function<LayerChain()>& make) {
  at::set_num_threads(1);
  torch::manual_seed(9);
  const at::Tensor input = torch::randn({8, 4});
  test::PlainChain plain(make(), PipelineOptions(1));
  const Tensors expected = plain.forward({input}, {});
  expected[0].sum().backward();
  for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
    Pipeline pipeline(make(), PipelineOptions(2).num_micro_batches(1).recompute(recompute));
    const Tensors outputs = pipeline->forward_tensors(Tensors{input});
    ASSERT_EQ(outputs.size(), expected.size());
    for (std::size_t index = 0; index < outputs.size(); ++index) {
      test::expect_same_bits(outputs[index], expected[index], "output " + std::to_string(index));
      if (!outputs[index].defined()) continue;
      EXPECT_EQ(outputs[index].requires_grad(), expected[index].requires_grad()) << index;
    }
    outputs[0].sum().backward();
    test::expect_same_bits(*pipeline, plain.model());
  }
}

struct FirstFourImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(Mixed mixed) {
    return {std::get<0>(mixed), std::get<1>(mixed), std::get<2>(mixed), std::get<3>(mixed)};
  }
};
TORCH_MODULE(FirstFour);

struct FirstThreeImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(Mixed mixed) {
    return {std::get<0>(mixed), std::get<1>(mixed), std::get<2>(mixed)};
  }
};
TORCH_MODULE(FirstThree);

TEST(Tuple, TheDropInForwardReturnsIntegerAndBooleanOutputs) {
  expect_transparent_forward([] { return LayerChain().add<Spread>("spread").add<FirstThree>("head"); });
}

TEST(Tuple, AMemberMayNeedAGradientInSomeMicroBatchesOnly) {
  struct SometimesImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& input) {
      const at::Tensor output = linear(input);
      return LayerScope::current()->micro_batch % 2 == parity ? output.detach() : output;
    }
    explicit SometimesImpl(int parity_) : parity(parity_) {}
    const int parity;
    torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  };
  struct Sometimes : torch::nn::ModuleHolder<SometimesImpl> {
    using torch::nn::ModuleHolder<SometimesImpl>::ModuleHolder;
  };
  for (const int parity : {0, 1}) {
    SCOPED_TRACE(parity);
    expect_transparent(make_problem(
        [=] { return LayerChain().add<Sometimes>("sometimes", parity).add<torch::nn::Linear>("head", 4, 4); }));
  }
}

TEST(Tuple, AMemberMayBeAbsentInSomeMicroBatches) {
  struct OfferImpl : torch::nn::Module {
    std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input) {
      const bool absent = LayerScope::current()->micro_batch % 2 == parity;
      return {input, absent ? at::Tensor() : linear(input)};
    }
    explicit OfferImpl(int parity_) : parity(parity_) {}
    const int parity;
    torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  };
  struct Offer : torch::nn::ModuleHolder<OfferImpl> {
    using torch::nn::ModuleHolder<OfferImpl>::ModuleHolder;
  };
  struct AcceptImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& input, const at::Tensor& extra) {
      return extra.defined() ? linear(input) * extra : linear(input);
    }
    torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  };
  struct Accept : torch::nn::ModuleHolder<AcceptImpl> {
    using torch::nn::ModuleHolder<AcceptImpl>::ModuleHolder;
  };
  for (const int parity : {0, 1}) {
    SCOPED_TRACE(parity);
    expect_transparent(make_problem([=] { return LayerChain().add<Offer>("offer", parity).add<Accept>("accept"); }));
  }
}

TEST(Tuple, OneTensorUnderTwoNamesGetsItsGradientsInThePlainOrder) {
  expect_transparent(make_problem(
      [] { return LayerChain().add<Twice>("twice").add<ThreeUses>("uses").add<torch::nn::Linear>("head", 4, 4); }));
}

TEST(Tuple, AnOutputOfTheDropInForwardNeedsAGradientOnlyIfThePlainOneDoes) {
  expect_transparent_forward([] { return LayerChain().add<Spread>("spread").add<FirstFour>("head"); });
}

TEST(Tuple, AnOutputOfTheDropInForwardMayBeUndefined) {
  expect_transparent_forward([] { return LayerChain().add<Spread>("spread").add<Mix>("mix"); });
}

TEST(Tuple, AReplicatedInputGetsTheSumOfItsGradients) {
  Problem problem = replicated_problem();
  problem.inputs[1].requires_grad_(true);
  at::set_num_threads(1);
  test::PlainChain plain(problem.make(), problem.options);
  const Tensors plain_inputs = problem.fresh_inputs();
  for (const MicroBatch& micro_batch : split_batch(plain_inputs, 4, {1})) {
    plain.forward(micro_batch.tensors, {})[0].sum().backward();
  }
  Pipeline pipeline(problem.make(), problem.options.num_stages(2));
  const Tensors inputs = problem.fresh_inputs();
  pipeline->forward_tensors(inputs)[0].sum().backward();
  test::expect_same_bits(*pipeline, plain.model());
  test::expect_same_bits(inputs[1].grad(), plain_inputs[1].grad(), "gradient of the table");
}

}  // namespace
}  // namespace gpipe
