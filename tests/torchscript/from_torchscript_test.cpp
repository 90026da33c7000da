#include "gpipe/torchscript/from_torchscript.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/error.h"
#include "gpipe/model/deferred_batch_norm.h"
#include "gpipe/model/profiler.h"
#include "tests/execute/plain_chain.h"
#include "tests/torchscript/script_modules.h"
#include "tests/torchscript/script_networks.h"

namespace gpipe {
namespace {

using test::convolutions;
using test::copy_of;
using test::Network;
using test::networks;
using test::script_batch_norm;
using test::script_conv;
using test::script_linear;
using test::script_module;
using test::shared_modules;
using ::testing::HasSubstr;

TEST(FromTorchScript, TrainsToTheBytesOfTheWholeModule) {
  for (const auto& [name, make] : networks()) {
    SCOPED_TRACE(name);
    torch::manual_seed(1);
    const Network network = make();
    torch::jit::Module whole = copy_of(network.module);
    torch::jit::Module parts = copy_of(network.module);
    const LayerChain chain = from_torchscript(parts, network.options);
    EXPECT_GE(chain.size(), 2);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor expected = test::train_whole(whole, network.arguments, /*seed=*/7 + step);
      const at::Tensor got = test::train_layers(chain, network.tensors, /*seed=*/7 + step);
      test::expect_same_bits(got, expected, "loss");
      test::expect_same_module(parts, whole);
    }
  }
}

TEST(FromTorchScript, ChainsAreTransparent) {
  for (const auto& [name, make] : networks()) {
    SCOPED_TRACE(name);
    torch::manual_seed(1);
    const Network network = make();
    test::Problem problem;
    problem.make = [&] {
      return from_torchscript(copy_of(network.module), TorchScriptOptions(network.options).min_layers(16));
    };
    problem.inputs = network.tensors;
    problem.targets = {torch::zeros({network.tensors[0].size(0), 1})};
    problem.loss = [](const Tensors& outputs, const Tensors& /*targets*/) { return test::weighted_sum(outputs); };
    problem.options.num_micro_batches(2);
    test::expect_transparent(problem);
  }
}

std::vector<std::string> names_of(const torch::OrderedDict<std::string, at::Tensor>& tensors) { return tensors.keys(); }

TEST(FromTorchScript, KeepsTheNamesOfTheModule) {
  const Network network = convolutions();
  Pipeline pipeline(from_torchscript(network.module), PipelineOptions(2));
  std::vector<std::string> parameters;
  for (const auto& parameter : network.module.named_parameters()) parameters.push_back(parameter.name);
  std::vector<std::string> buffers;
  for (const auto& buffer : network.module.named_buffers()) buffers.push_back(buffer.name);
  EXPECT_THAT(names_of(pipeline->named_parameters()), ::testing::UnorderedElementsAreArray(parameters));
  EXPECT_THAT(names_of(pipeline->named_buffers()), ::testing::UnorderedElementsAreArray(buffers));
}

TEST(FromTorchScript, KeepsWeightsThatNoOperationReads) {
  torch::jit::Module module = script_module();
  module.register_module("a", script_linear(3, 3));
  module.register_module("unused", script_linear(2, 2));
  module.register_module("b", script_linear(3, 3));
  module.define("def forward(self, x):\n  return self.b.forward(self.a.forward(x))\n");
  const LayerChain chain = from_torchscript(module);
  ASSERT_EQ(chain.size(), 2);
  EXPECT_THAT(chain.weight_names(0), ::testing::ElementsAre("a.weight", "a.bias", "unused.weight", "unused.bias"));
}

TEST(FromTorchScript, AModuleWithoutOperationsIsOneLayer) {
  const LayerChain chain = from_torchscript(script_module("def forward(self, x, y):\n  return (y, x)\n"));
  ASSERT_EQ(chain.size(), 1);
  const Tensors outputs = chain.build(0, /*seed=*/0).forward({torch::zeros({2}), torch::ones({3})});
  ASSERT_EQ(outputs.size(), 2U);
  test::expect_same_bits(outputs[0], torch::ones({3}), "y");
}

TEST(FromTorchScript, NamesLayersAfterSubmodules) {
  const LayerChain chain = from_torchscript(convolutions().module);
  std::vector<std::string> names;
  for (int layer = 0; layer < chain.size(); ++layer) names.push_back(chain.name(layer));
  EXPECT_THAT(names, ::testing::Contains("conv1"));
  EXPECT_THAT(names, ::testing::Contains("head"));
}

TEST(FromTorchScript, SharesItsWeightsWithTheModule) {
  const Network network = shared_modules();
  const LayerChain chain = from_torchscript(network.module);
  for (const auto& parameter : chain.build(0, /*seed=*/0).module->named_parameters()) {
    EXPECT_TRUE(parameter.value().is_same(test::named_tensors(network.module).at(parameter.key()))) << parameter.key();
  }
}

TEST(FromTorchScript, EvaluatesAsTheModuleDoes) {
  torch::manual_seed(1);
  const Network network = convolutions();
  torch::jit::Module whole = copy_of(network.module);
  Pipeline pipeline(from_torchscript(network.module), PipelineOptions(2).num_micro_batches(2));
  pipeline->train_step(network.tensors, {torch::zeros({4, 1})},
                       [](const Tensors& outputs, const Tensors&) { return test::weighted_sum(outputs); });
  const auto values = test::named_tensors(network.module);
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : test::named_tensors(whole)) tensor.copy_(values.at(name));
  }
  whole.eval();
  pipeline->eval();
  const at::NoGradGuard no_grad;
  const test::PlainExecutor plain;
  test::expect_same_bits(pipeline->forward(network.tensors[0]), whole.forward(network.arguments).toTensor(), "result");
}

TEST(FromTorchScript, AFrozenSubmoduleKeepsItsStatistics) {
  torch::manual_seed(1);
  const Network network = convolutions();
  Pipeline pipeline(from_torchscript(network.module), PipelineOptions(2).num_micro_batches(2));
  pipeline->named_modules()["norm1"]->eval();
  pipeline->train_step(network.tensors, {torch::zeros({4, 1})},
                       [](const Tensors& outputs, const Tensors&) { return test::weighted_sum(outputs); });
  const auto buffers = pipeline->named_buffers();
  EXPECT_EQ(buffers["norm1.num_batches_tracked"].item<std::int64_t>(), 0);
  EXPECT_EQ(buffers["norm2.num_batches_tracked"].item<std::int64_t>(), 2);
}

TEST(FromTorchScript, ParametersThatNeedNoGradientGetNone) {
  const Network network = shared_modules();
  for (const auto& parameter : network.module.attr("a").toModule().parameters()) parameter.set_requires_grad(false);
  torch::jit::Module parts = network.module;
  test::train_layers(from_torchscript(parts), network.tensors, /*seed=*/1);
  for (const auto& [name, tensor] : test::named_tensors(parts))
    EXPECT_EQ(tensor.grad().defined(), name[0] == 'b') << name;
}

TEST(FromTorchScript, AssignsToItsBuffers) {
  torch::jit::Module module = script_module();
  module.register_module("a", script_linear(3, 3));
  module.register_buffer("mean", torch::zeros({3}));
  module.define(R"(
def forward(self, x):
  x = self.a.forward(x)
  before = self.mean
  self.mean = before * 0.9 + torch.mean(x, [0]) * 0.1
  return torch.tanh(x - self.mean) + before
)");
  torch::jit::Module whole = copy_of(module);
  const LayerChain chain = from_torchscript(module);
  const at::Tensor input = torch::randn({4, 3});
  const at::Tensor expected = test::train_whole(whole, {input}, /*seed=*/1);
  test::expect_same_bits(test::train_layers(chain, {input}, /*seed=*/1), expected, "loss");
  test::expect_same_module(module, whole);
}

TEST(FromTorchScript, ADictionaryBeginsEachForwardAsItWas) {
  torch::jit::Module module = script_module();
  module.register_module("a", script_linear(3, 3));
  module.register_attribute("cache", c10::DictType::create(c10::StringType::get(), c10::TensorType::get()),
                            c10::Dict<std::string, at::Tensor>());
  module.define(R"(
def forward(self, x):
  if "twice" not in self.cache:
    self.cache["twice"] = self.a.forward(x) * 2
  return torch.tanh(self.cache["twice"])
)");
  const LayerChain chain = from_torchscript(module);
  const auto result = [&](const at::Tensor& input) {
    Tensors tensors = {input};
    for (int layer = 0; layer < chain.size(); ++layer) tensors = chain.build(layer, 0).forward(std::move(tensors));
    return tensors[0];
  };
  const at::Tensor ones = result(torch::ones({2, 3}));
  EXPECT_FALSE(test::same_bits(result(torch::zeros({2, 3})), ones)) << "the result of another batch was kept";
  EXPECT_TRUE(test::same_bits(result(torch::ones({2, 3})), ones));
}

TEST(FromTorchScript, LargeSharedParametersAreTied) {
  torch::manual_seed(1);
  const Network network = shared_modules();
  test::Problem problem;
  problem.make = [&] { return from_torchscript(copy_of(network.module), TorchScriptOptions().most_shared_bytes(8)); };
  EXPECT_EQ(problem.make().ties().size(), 6U);
  EXPECT_EQ(from_torchscript(network.module).ties().size(), 0U);
  problem.inputs = network.tensors;
  problem.targets = {torch::zeros({4, 1})};
  problem.loss = [](const Tensors& outputs, const Tensors& /*targets*/) { return test::weighted_sum(outputs); };
  for (const int num_stages : {1, 2, 3}) {
    test::expect_transparent(problem, PipelineOptions(num_stages).num_micro_batches(4));
  }
}

TEST(FromTorchScript, SplitsTheBackwardTransparently) {
  for (const auto& [name, make] : networks()) {
    SCOPED_TRACE(name);
    torch::manual_seed(1);
    const Network network = make();
    test::Problem problem;
    problem.make = [&] { return from_torchscript(copy_of(network.module), network.options); };
    problem.inputs = network.tensors;
    problem.targets = {torch::zeros({network.tensors[0].size(0), 1})};
    problem.loss = [](const Tensors& outputs, const Tensors& /*targets*/) { return test::weighted_sum(outputs); };
    problem.options.num_micro_batches(2);
    const int num_layers = problem.make().size();
    for (const char* schedule : {"zb-h1", "zb-v"}) {
      const int num_stages = std::min(2, std::string(schedule) == "zb-v" ? num_layers / 2 : num_layers);
      test::expect_transparent(problem, PipelineOptions(num_stages).num_micro_batches(2).schedule(schedule));
    }
  }
}

// A network of convolutions and batch norms in C++, and the same one as TorchScript with these weights.
struct NetworkTwice {
  torch::nn::Sequential plain;
  torch::jit::Module script = script_module();
  at::Tensor input = torch::randn({8, 3, 5, 5});

  NetworkTwice() {
    plain->push_back("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1).bias(false)));
    plain->push_back("norm1", torch::nn::BatchNorm2d(4));
    plain->push_back("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)));
    plain->push_back("norm2", torch::nn::BatchNorm2d(4));
    script.register_module("conv1", script_conv(3, 4));
    script.register_module("norm1", script_batch_norm(4));
    script.register_module("conv2", script_conv(4, 4));
    script.register_module("norm2", script_batch_norm(4));
    script.define(R"(
def forward(self, x):
  x = self.norm1.forward(self.conv1.forward(x))
  return self.norm2.forward(self.conv2.forward(x))
)");
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : test::named_tensors(script)) {
      if (tensor.requires_grad()) tensor.copy_(plain->named_parameters()[name]);
    }
  }
};

TEST(FromTorchScript, DefersBatchNormsAsTheModulesDo) {
  torch::manual_seed(1);
  const NetworkTwice network;
  const auto loss = [](const Tensors& outputs, const Tensors&) { return test::weighted_sum(outputs); };
  Pipeline expected(gpipe::nn::convert_batch_norm(network.plain), PipelineOptions(1).num_micro_batches(4));
  Pipeline got(from_torchscript(network.script, TorchScriptOptions().deferred_batch_norm(true)),
               PipelineOptions(2).num_micro_batches(4));
  for (int step = 0; step < 3; ++step) {
    const at::Tensor target = torch::zeros({8, 1});
    const at::Tensor expected_loss = expected->train_step({network.input}, {target}, loss).loss;
    test::expect_same_bits(got->train_step({network.input}, {target}, loss).loss, expected_loss, "loss");
  }
  EXPECT_EQ(got->named_buffers()["norm1.num_batches_tracked"].item<std::int64_t>(), 3);
  test::expect_same_bits(*got, *expected);
  got->eval();
  expected->eval();
  const at::NoGradGuard no_grad;
  test::expect_same_bits(got->forward(network.input), expected->forward(network.input), "evaluation");
}

TEST(FromTorchScript, DeferredBatchNormsAreTransparent) {
  torch::manual_seed(1);
  const Network network = convolutions();
  test::Problem problem;
  problem.make = [&] {
    return from_torchscript(copy_of(network.module), TorchScriptOptions().deferred_batch_norm(true).min_layers(16));
  };
  problem.inputs = network.tensors;
  problem.targets = {torch::zeros({4, 1})};
  problem.loss = [](const Tensors& outputs, const Tensors& /*targets*/) { return test::weighted_sum(outputs); };
  problem.options.num_micro_batches(2);
  for (const int num_stages : {1, 2, 3}) {
    for (const Recompute recompute : {Recompute::kAlways, Recompute::kNever}) {
      test::expect_transparent(problem, PipelineOptions(num_stages).num_micro_batches(2).recompute(recompute));
    }
  }
}

TEST(FromTorchScript, IsProfiledOnTheMetaDeviceAndStaysWhereItIs) {
  const Network network = convolutions();
  const LayerChain chain = from_torchscript(network.module);
  const Profile profile = gpipe::profile(chain, network.tensors[0].to(at::kMeta));
  EXPECT_EQ(static_cast<int>(profile.layers.size()), chain.size());
  for (const auto& [name, tensor] : test::named_tensors(network.module)) EXPECT_TRUE(tensor.is_cpu()) << name;
}

TEST(FromTorchScript, AMemoryLimitThrowsItsOwnError) {
  const Network network = convolutions();
  Pipeline pipeline(from_torchscript(network.module), PipelineOptions(1).memory_limit_bytes(20'000));
  EXPECT_THROW(pipeline->train_step({torch::randn({64, 3, 16, 16})}, {torch::zeros({64, 1})},
                                    [](const Tensors& outputs, const Tensors&) { return test::weighted_sum(outputs); }),
               OutOfMemoryError);
}

// What is said of a module with the submodule `a` and this source.
template <typename Exception = InvalidArgument>
std::string refusal(const std::string& source, const TorchScriptOptions& options = {}) {
  try {
    torch::jit::Module module = script_module();
    module.register_module("a", script_linear(3, 3));
    module.register_attribute("count", c10::IntType::get(), 0);
    module.register_buffer("mean", torch::zeros({3}));
    module.register_attribute("sizes", c10::ListType::ofInts(), c10::List<std::int64_t>({3}));
    module.register_attribute("last", c10::TensorType::get(), torch::zeros({3}));
    if (!source.empty()) module.define(source);
    from_torchscript(module, options);
  } catch (const Exception& error) {
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "nothing was thrown";
}

TEST(FromTorchScript, SaysWhatItCannotCut) {
  EXPECT_THAT(refusal(""), HasSubstr("has no forward"));
  EXPECT_THAT(refusal("def forward(self, x):\n  return x, x.size(0)\n"),
              HasSubstr("the result.1 of the module is int"));
  EXPECT_THAT(refusal("def forward(self, x, n: int):\n  return x * n\n"),
              HasSubstr("\"n\" of the module's forward is int"));
  EXPECT_THAT(refusal("def forward(self, xs: List[Tensor]):\n  return xs[0]\n"), HasSubstr("\"xs.0\""));
  EXPECT_THAT(refusal("def forward(self, f: Dict[str, Tensor]):\n  return f[\"x\"]\n"), HasSubstr("\"f.key\""));
  EXPECT_THAT(refusal("def forward(self, x):\n  self.count += 1\n  return x\n"), HasSubstr("\"count\" is assigned"));
  EXPECT_THAT(refusal("def forward(self, x):\n  self.last = x\n  return x\n"), HasSubstr("self.last.copy_(value)"));
  EXPECT_THAT(refusal("def forward(self, x):\n  self.sizes.append(1)\n  return x\n"), HasSubstr("changes a list"));
  EXPECT_THAT(refusal(R"(
def forward(self, x):
  self.mean = torch.mean(x, [0])
  if bool(torch.mean(x) > 0):
    self.mean = self.mean * 2
  return x - self.mean
)"),
              HasSubstr("\"mean\" is assigned within an if"));
}

TEST(FromTorchScript, SaysWhichInputsItTakes) {
  const std::string source = "def forward(self, x, mask: Optional[Tensor] = None):\n  return self.a.forward(x)\n";
  EXPECT_THAT(refusal(source, TorchScriptOptions().inputs({"y"})), HasSubstr("forward needs \"x\""));
  EXPECT_THAT(refusal(source, TorchScriptOptions().inputs({"x", "masks"})), HasSubstr("has no tensor \"masks\""));
  EXPECT_THAT(refusal(source, TorchScriptOptions().inputs({"x", "x"})), HasSubstr("named twice"));
  EXPECT_THAT(refusal(source, TorchScriptOptions().min_layers(0)), HasSubstr("min_layers is 0"));
}

TEST(FromTorchScript, SaysInOneLineThatAnInputDoesNotFit) {
  const Network network = shared_modules();
  const LayerChain chain = from_torchscript(network.module);
  const auto run = [&](const Tensors& tensors) { chain.build(0, /*seed=*/0).forward(tensors); };
  const auto says = [](const std::string& text) {
    return ::testing::ThrowsMessage<InvalidArgument>(
        ::testing::AllOf(HasSubstr(text), ::testing::Not(HasSubstr("\n"))));
  };
  EXPECT_THAT([&] { run({torch::ones({2, 5})}); }, says("shapes cannot be multiplied (2x5 and 6x6)"));
  EXPECT_THAT([&] { run({torch::ones({2, 6}), torch::ones({2, 6})}); }, says("takes 1 tensors (x), got 2"));
}

}  // namespace
}  // namespace gpipe
