#include "gpipe/torchscript/indexed_submodules.h"

#include <gtest/gtest.h>

#include "tests/torchscript/script_modules.h"

namespace gpipe::detail {
namespace {

namespace prim = torch::jit::prim;

// The graph self.layers[index], where `layers` has the submodules "first" and "1".
std::shared_ptr<torch::jit::Graph> graph_of(const torch::jit::Module& module, const c10::IValue& index) {
  auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::Value* const self = graph->addInput("self");
  self->setType(module.type());
  torch::jit::Value* const layers = graph->insertGetAttr(self, "layers");
  torch::jit::Node* const indexed =
      graph->insertNode(graph->create(prim::ModuleContainerIndex, {layers, graph->insertConstant(index)}));
  graph->registerOutput(indexed->output());
  return graph;
}

// What the graph's output is taken by: the attribute's name, or the kind of operation.
std::string taken_by(const c10::IValue& index) {
  torch::jit::Module layers = test::script_module();
  layers.register_module("first", test::script_linear(2, 2));
  layers.register_module("1", test::script_linear(3, 3));
  torch::jit::Module module = test::script_module();
  module.register_module("layers", layers);
  const auto graph = graph_of(module, index);
  name_indexed_submodules(*graph, module);
  const torch::jit::Node& node = *graph->outputs()[0]->node();
  return node.kind() == prim::GetAttr ? node.s(torch::jit::attr::name) : node.kind().toQualString();
}

TEST(IndexedSubmodules, AreNamedByTheirPlaceOrTheirKey) {
  EXPECT_EQ(taken_by(0), "first");
  EXPECT_EQ(taken_by(1), "1");
  EXPECT_EQ(taken_by(-2), "first");
  EXPECT_EQ(taken_by("first"), "first");
}

TEST(IndexedSubmodules, StayWhereThereIsNone) {
  EXPECT_EQ(taken_by(2), "prim::ModuleContainerIndex");
  EXPECT_EQ(taken_by("second"), "prim::ModuleContainerIndex");
}

}  // namespace
}  // namespace gpipe::detail
