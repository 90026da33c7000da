#include "gpipe/torchscript/cut_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "gpipe/model/boundary.h"
#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/graph_aliases.h"
#include "gpipe/torchscript/script_chain.h"
#include "tests/torchscript/random_scripts.h"
#include "tests/torchscript/script_modules.h"

namespace gpipe::detail {
namespace {

using test::script_linear;
using test::script_module;

torch::jit::Module small_module(const std::string& source) {
  torch::jit::Module module = script_module();
  for (const char* name : {"a", "b", "c"}) module.register_module(name, script_linear(6, 6));
  module.register_buffer("state", torch::zeros({6}));
  module.define(source);
  return module;
}

// What a forward and a backward leave, in the order of the names.
struct Outcome {
  at::Tensor loss;
  Tensors values;  // gradients and buffers
};

Outcome outcome_of(const torch::jit::Module& module, const at::Tensor& loss) {
  Outcome outcome{loss, {}};
  for (const auto& [name, tensor] : test::named_tensors(module)) {
    outcome.values.push_back(tensor.requires_grad() ? tensor.grad() : tensor.clone());
  }
  return outcome;
}

void reset(torch::jit::Module& module) {
  for (const auto& [name, tensor] : test::named_tensors(module)) {
    if (tensor.requires_grad()) {
      tensor.mutable_grad().reset();
    } else {
      tensor.zero_();
    }
  }
}

::testing::AssertionResult same_outcome(const Outcome& got, const Outcome& expected) {
  if (const auto same = test::same_bits(got.loss, expected.loss); !same) return same;
  return test::same_bits(got.values, expected.values);
}

// In two layers that share nothing but what is handed on: copies of the tensors, as between processes.
Outcome train_cut(torch::jit::Module& module, const FlatGraph& flat, const GraphAliases& aliases, int cut,
                  const at::Tensor& input) {
  reset(module);
  const LayerChain chain = script_chain(flat, aliases, {cut}, TorchScriptOptions().most_shared_bytes());
  torch::manual_seed(5);
  const Tensors handed_on = chain.build(0, 0).forward({input.clone()});
  Tensors taken = detached(handed_on);
  std::vector<bool> requires_grad;
  for (at::Tensor& tensor : taken) {
    requires_grad.push_back(handed_on[requires_grad.size()].requires_grad());
    if (tensor.defined()) tensor = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
  }
  const auto boundary = Boundary::enter(taken, requires_grad);
  const at::Tensor loss = test::weighted_sum(chain.build(1, 0).forward(taken));
  loss.backward();
  Roots(handed_on).backward_from(boundary->take_grads()).run();
  return outcome_of(module, loss.detach());
}

// Nothing if the module itself cannot be trained.
std::optional<Outcome> train_whole(torch::jit::Module& module, const at::Tensor& input) {
  reset(module);
  try {
    const at::Tensor loss = test::train_whole(module, {input.clone()}, /*seed=*/5);
    return outcome_of(module, loss);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

TEST(CutRules, RandomModulesTrainTheSameAtEveryAllowedCut) {
  constexpr int kNumModules = 500;
  int num_modules = 0;
  int num_cuts = 0;
  int num_forbidden = 0;
  for (unsigned seed = 0; num_modules < kNumModules; ++seed) {
    ASSERT_LT(seed, 20U * kNumModules);
    torch::manual_seed(seed);
    const std::string source = test::RandomScript(seed).source();
    torch::jit::Module module = small_module(source);
    const at::Tensor input = torch::randn({3, 6});
    const std::optional<Outcome> expected = train_whole(module, input);
    if (!expected) continue;  // libtorch has refused to differentiate it
    ++num_modules;
    const FlatGraph flat = flatten(module, {});
    const GraphAliases aliases(flat);
    const CutRules rules = find_cuts(flat, aliases);
    for (int cut = 1; cut < flat.num_nodes(); ++cut) {
      if (!rules.allowed[cut]) {
        ++num_forbidden;
        continue;
      }
      ++num_cuts;
      const Outcome got = train_cut(module, flat, aliases, cut, input);
      ASSERT_TRUE(same_outcome(got, *expected)) << "seed " << seed << ", cut " << cut << " of\n"
                                                << source << *flat.graph;
    }
  }
  EXPECT_GT(num_cuts, 4 * kNumModules);
  EXPECT_GT(num_forbidden, kNumModules);
}

// The first node of this kind, "aten::add_".
int node_of(const FlatGraph& flat, const std::string& kind) {
  for (int node = 0; node < flat.num_nodes(); ++node) {
    if (flat.nodes[node]->kind().toQualString() == kind) return node;
  }
  ADD_FAILURE() << "there is no " << kind << " in " << *flat.graph;
  return 0;
}

TEST(CutRules, CuttingWhereItIsForbiddenGivesAnotherLoss) {
  torch::manual_seed(1);
  torch::jit::Module module = small_module(R"(
def forward(self, x):
  y = self.a.forward(x)
  v = y.view([-1, 2, 3])
  w = torch.sigmoid(self.b.forward(x))
  y.add_(w)
  return self.c.forward(y) + v.flatten(1)
)");
  const at::Tensor input = torch::randn({3, 6});
  const FlatGraph flat = flatten(module, {});
  const GraphAliases aliases(flat);
  const CutRules rules = find_cuts(flat, aliases);
  const int forbidden = node_of(flat, "aten::sigmoid");
  const int allowed = node_of(flat, "aten::view");
  EXPECT_FALSE(rules.allowed[forbidden]);
  const at::Tensor expected = train_whole(module, input)->loss;
  EXPECT_FALSE(test::same_bits(train_cut(module, flat, aliases, forbidden, input).loss, expected));
  EXPECT_FALSE(rules.allowed[allowed]) << "y is written to behind it";
}

// Whether there may be a cut before each node, as text: "." for a cut and "x" for none.
std::string cuts_of(const std::string& source) {
  const torch::jit::Module module = small_module(source);
  const FlatGraph flat = flatten(module, {});
  const GraphAliases aliases(flat);
  std::string text;
  for (const bool allowed : find_cuts(flat, aliases).allowed) text += allowed ? '.' : 'x';
  return text;
}

TEST(CutRules, CutsPlainOperationsAnywhere) {
  EXPECT_EQ(cuts_of("def forward(self, x):\n  return torch.relu(torch.tanh(self.a.forward(x)))\n"), "x..");
}

TEST(CutRules, KeepsStateThatIsWrittenInOneLayer) {
  // linear; add_; mul; add; tanh
  EXPECT_EQ(cuts_of(R"(
def forward(self, x):
  x = self.a.forward(x)
  self.state.add_(1)
  x = x * 2
  x = x + self.state
  return torch.tanh(x)
)"),
            "x.xx.");
}

TEST(CutRules, CutsStateThatIsOnlyRead) {
  EXPECT_EQ(cuts_of("def forward(self, x):\n  return (x + self.state) * self.state\n"), "x.");
}

TEST(CutRules, DoesNotCutBeforeAWriteToWhatIsHandedOn) {
  EXPECT_EQ(cuts_of("def forward(self, x):\n  return torch.tanh(torch.relu_(self.a.forward(x)))\n"), "xx.");
}

TEST(CutRules, DoesNotHandOnAViewWhoseBaseWasWrittenTo) {
  // linear; the list for the view; view; add_; tanh; flatten, which is a view of its own; add
  EXPECT_EQ(cuts_of(R"(
def forward(self, x):
  y = self.a.forward(x)
  v = y.view([-1, 2, 3])
  y.add_(1)
  y = torch.tanh(y)
  return y + v.flatten(1)
)"),
            "xxxxxx.");
}

// Whether a module of this source may be cut before its first branch.
bool is_cut_before_branch(const std::string& source) {
  const torch::jit::Module module = small_module(source);
  const FlatGraph flat = flatten(module, {});
  const GraphAliases aliases(flat);
  return find_cuts(flat, aliases).allowed[node_of(flat, "prim::If")];
}

TEST(CutRules, HandsOnAListThatGrows) {
  EXPECT_TRUE(is_cut_before_branch(R"(
def forward(self, x):
  parts = [x]
  x = torch.tanh(x)
  if bool(torch.mean(x) > 0):
    parts.append(x)
  return torch.stack(parts).sum(0)
)"));
}

TEST(CutRules, DoesNotHandOnTwoNamesOfAListThatGrows) {
  EXPECT_FALSE(is_cut_before_branch(R"(
def forward(self, x):
  parts = [x]
  others = [parts]
  x = torch.tanh(x)
  if bool(torch.mean(x) > 0):
    parts.append(x)
    others.append(parts)
  return torch.stack(others[0]).sum(0) + torch.stack(parts).sum(0)
)"));
}

TEST(CutRules, DoesNotCutWhereGradientsAreSwitchedOff) {
  // linear; is_grad_enabled; set_grad_enabled; tanh; set_grad_enabled; add
  EXPECT_EQ(cuts_of(R"(
def forward(self, x):
  x = self.a.forward(x)
  before = torch.is_grad_enabled()
  torch.set_grad_enabled(False)
  y = torch.tanh(x)
  torch.set_grad_enabled(before)
  return x + y
)"),
            "x..xx.");
}

}  // namespace
}  // namespace gpipe::detail
