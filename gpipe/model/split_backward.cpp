#include "gpipe/model/split_backward.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/version.h>

#include <array>
#include <string_view>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Notes what arrives at a node.
class Arrival : public torch::autograd::FunctionPreHook {
 public:
  variable_list operator()(const variable_list& grads) override { return grads_ = grads; }
  variable_list take() { return std::move(grads_); }

 private:
  variable_list grads_;
};

// Frees what a node has saved as soon as it has run.
class Release : public torch::autograd::FunctionPostHook {
 public:
  // Once a node: those of weights that autocast has cast are part of the graphs of several micro-batches.
  static void add_to(Node& node) {
    for (const auto& hook : node.post_hooks()) {
      if (dynamic_cast<const Release*>(hook.get()) != nullptr) return;
    }
    node.add_post_hook(std::make_unique<Release>(node));
  }
  explicit Release(Node& node) : node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    node_.release_variables();
    return outputs;
  }

 private:
  Node& node_;
};

bool has_hooks(Node& node) {
#if TORCH_VERSION_MAJOR >= 2
  if (!node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty()) return true;
#endif
  return !node.pre_hooks().empty() || !node.post_hooks().empty();
}

// The name of a node is that of its class, and to make it readable takes as long as to run a small node.
const std::string& name_of(const Node& node) {
  thread_local std::unordered_map<std::type_index, std::string> names;
  std::string& name = names[typeid(node)];
  if (name.empty()) name = node.name();
  return name;
}

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

// Computes weight and bias together.
bool is_convolution(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames = {"ConvolutionBackward", "MkldnnConvolution", "CudnnConvolution",
                                                      "MiopenConvolution", "SlowConv"};
  for (const std::string_view start : kNames) {
    if (starts_with(name, start)) return true;
  }
  return false;
}

// Whether it computes only those outputs that are asked for, and nobody sees that it runs twice.
bool can_run_twice(Node& node, std::string_view name) {
  if (dynamic_cast<torch::autograd::TraceableFunction*>(&node) == nullptr || has_hooks(node)) return false;
  // Generated, but all or nothing.
  constexpr std::array<std::string_view, 11> kWhole = {
      "MkldnnRnnLayer",     "CudnnRnn",  "MiopenRnn",      "ScaledDotProduct", "FlashAttention",
      "EfficientAttention", "ThnnFused", "CudnnBatchNorm", "MiopenBatchNorm",  "Prelu",
      "MkldnnLinear"};
  for (const std::string_view start : kWhole) {
    if (starts_with(name.substr(name[0] == '_' ? 1 : 0), start)) return false;
  }
  return true;
}

// What a node leads to.
enum : std::uint8_t { kNothing = 0, kInput = 1, kPrompt = 2, kDeferred = 4 };
constexpr std::uint8_t kNow = kInput | kPrompt;

}  // namespace

// One graph, as far as its roots lead.
class SplitBackward::Walk {
 public:
  // `num_nodes` is a guess.
  Walk(const std::vector<Edge>& roots, const Node* boundary, DeferredWeights which, std::size_t num_nodes)
      : boundary_(boundary) {
    nodes_.reserve(num_nodes);
    children_.reserve(num_nodes);
    index_of_.reserve(num_nodes);
    for (const Edge& root : roots) visit(root.function.get());
    choose(which);
    spread();
    while (join_parameters(kDeferred)) spread();
  }

  std::size_t num_nodes() const { return nodes_.size(); }
  bool leads_to_deferred() const { return (leads_to_ & kDeferred) != 0; }

  // Takes back the deferral of what is below nodes that cannot be split.
  void respect_unsplit_nodes(std::set<std::string>& names) {
    while (find_unsplit_nodes(names) || join_parameters(kPrompt)) spread();
  }

  ReadyBackward run(ReadyBackward backward) {
    ReadyBackward later = backward.take_if([&](const Node* root) { return can_wait(index_of_.at(root)); });
    std::vector<Edge> targets;
    std::vector<std::pair<std::size_t, std::shared_ptr<Node>>> split;
    for (std::size_t index = 0; index < nodes_.size(); ++index) {
      if ((nodes_[index].leads_to & kNow) == 0) continue;
      Node& node = *nodes_[index].node;
      if (num_children(index) == 0) {
        targets.emplace_back(node.shared_from_this(), 0);
      } else if (is_split(index)) {
        node.add_pre_hook(std::make_unique<Arrival>());
        split.emplace_back(index, node.shared_from_this());
      } else {
        Release::add_to(node);
      }
    }
    backward.run_towards(std::move(targets));
    // The other nodes may be gone now.
    for (const auto& [index, node] : split) add_later(index, node, later);
    return later;
  }

 private:
  struct Visited {
    Node* node = nullptr;
    std::uint8_t leads_to = kNothing;
    std::size_t first_child = 0;  // in children_
    std::size_t num_children = 0;
  };
  static constexpr std::size_t kNoNode = static_cast<std::size_t>(-1);

  std::size_t num_children(std::size_t index) const { return nodes_[index].num_children; }
  std::size_t child(std::size_t index, std::size_t edge) const { return children_[nodes_[index].first_child + edge]; }

  // Children come before their parents in nodes_. Without recursion: a graph may be deeper than the stack.
  void visit(Node* root) {
    if (!index_of_.try_emplace(root, kNoNode).second) return;
    std::vector<std::pair<Node*, std::size_t>> path = {{root, 0}};
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next < node->num_outputs()) {
        Node* const below = node->next_edge(next++).function.get();
        if (below != nullptr && index_of_.try_emplace(below, kNoNode).second) path.emplace_back(below, 0);
        continue;
      }
      add(node);
      path.pop_back();
    }
  }

  void add(Node* node) {
    index_of_[node] = nodes_.size();
    Visited visited;
    visited.node = node;
    visited.first_child = children_.size();
    visited.num_children = node->num_outputs();
    for (const Edge& edge : node->next_edges()) {
      children_.push_back(edge.is_valid() ? index_of_.at(edge.function.get()) : kNoNode);
    }
    nodes_.push_back(visited);
  }

  static bool is_matrix(const Node& node) {
    const auto* const leaf = dynamic_cast<const AccumulateGrad*>(&node);
    return leaf != nullptr && leaf->variable.dim() >= 2;
  }

  // A leaf leads to itself.
  void choose(DeferredWeights which) {
    for (Visited& visited : nodes_) {
      if (visited.node == boundary_) {
        visited.leads_to = kInput;
      } else if (visited.num_children == 0) {
        const bool deferred =
            which == DeferredWeights::kAll || (which == DeferredWeights::kMatrices && is_matrix(*visited.node));
        visited.leads_to = deferred ? kDeferred : kPrompt;
      }
    }
    if (which != DeferredWeights::kMatrices) return;
    for (std::size_t index = 0; index < nodes_.size(); ++index) {
      if (num_children(index) == 3 && is_convolution(name_of(*nodes_[index].node))) defer_bias(index);
    }
  }

  void defer_bias(std::size_t convolution) {
    for (std::size_t edge = 0; edge < num_children(convolution); ++edge) {
      const std::size_t below = child(convolution, edge);
      if (below != kNoNode && nodes_[below].leads_to == kPrompt) nodes_[below].leads_to = kDeferred;
    }
  }

  // From the leaves to the roots.
  void spread() {
    leads_to_ = kNothing;
    for (std::size_t index = 0; index < nodes_.size(); ++index) {
      if (num_children(index) != 0) nodes_[index].leads_to = kNothing;
      for (std::size_t edge = 0; edge < num_children(index); ++edge) {
        const std::size_t below = child(index, edge);
        if (below != kNoNode) nodes_[index].leads_to |= nodes_[below].leads_to;
      }
      leads_to_ |= nodes_[index].leads_to;
    }
  }

  // A node over parameters only is not split, because the graphs of several micro-batches may share it: all leaves
  // below it become `kind` if they are of both kinds. Whether there was any.
  bool join_parameters(std::uint8_t kind) {
    bool found = false;
    for (std::size_t index = 0; index < nodes_.size(); ++index) {
      if (num_children(index) == 0 || nodes_[index].leads_to != (kPrompt | kDeferred)) continue;
      make_leaves(index, kind);
      found = true;
    }
    return found;
  }

  void make_leaves(std::size_t top, std::uint8_t kind) {
    std::set<std::size_t> seen;
    std::vector<std::size_t> path = {top};
    while (!path.empty()) {
      const std::size_t index = path.back();
      path.pop_back();
      if (!seen.insert(index).second) continue;
      if (num_children(index) == 0) nodes_[index].leads_to = kind;
      for (std::size_t edge = 0; edge < num_children(index); ++edge) {
        if (child(index, edge) != kNoNode) path.push_back(child(index, edge));
      }
    }
  }

  bool can_wait(std::size_t index) const { return index != kNoNode && nodes_[index].leads_to == kDeferred; }

  bool is_split(std::size_t index) const {
    if ((nodes_[index].leads_to & kDeferred) == 0 || (nodes_[index].leads_to & kNow) == 0) return false;
    for (std::size_t edge = 0; edge < num_children(index); ++edge) {
      if (can_wait(child(index, edge))) return true;
    }
    return false;
  }

  // Whether there was any.
  bool find_unsplit_nodes(std::set<std::string>& names) {
    bool found = false;
    for (std::size_t index = 0; index < nodes_.size(); ++index) {
      if (!is_split(index)) continue;
      const std::string& name = name_of(*nodes_[index].node);
      if (can_run_twice(*nodes_[index].node, name)) continue;
      names.insert(name);
      for (std::size_t edge = 0; edge < num_children(index); ++edge) {
        if (can_wait(child(index, edge))) make_leaves(child(index, edge), kPrompt);
      }
      found = true;
    }
    return found;
  }

  // After the run: cuts what was needed now off a split node, and lets the rest start there.
  void add_later(std::size_t index, const std::shared_ptr<Node>& node, ReadyBackward& later) const {
    for (std::size_t edge = 0; edge < num_children(index); ++edge) {
      if (!can_wait(child(index, edge))) node->next_edges()[edge] = Edge();
    }
    variable_list grads = static_cast<Arrival&>(*node->pre_hooks().back()).take();
    node->pre_hooks().pop_back();
    for (std::size_t input = 0; input < grads.size(); ++input) {
      if (grads[input].defined()) later.add(Edge(node, static_cast<std::uint32_t>(input)), std::move(grads[input]));
    }
  }

  const Node* const boundary_;
  std::vector<Visited> nodes_;
  std::vector<std::size_t> children_;  // of all nodes, by edge; kNoNode where no gradient is needed
  std::unordered_map<const Node*, std::size_t> index_of_;
  std::uint8_t leads_to_ = kNothing;  // of all roots
};

ReadyBackward SplitBackward::run_inputs(LayerGraph& graph, Tensors grads) {
  ReadyBackward backward = graph.roots.backward_from(std::move(grads));
  if (which_ == DeferredWeights::kNone) {
    backward.run();
    return {};
  }
  if (!graph.boundary->requires_grad()) return backward;
  Walk walk(backward.edges(), graph.boundary.get(), which_, num_nodes_);
  num_nodes_ = walk.num_nodes();
  walk.respect_unsplit_nodes(unsplit_nodes_);
  if (is_order_given_ && !unsplit_nodes_.empty()) {
    throw InvalidArgument(fmt::format(
        "the schedule has input gradients in another order than that of the micro-batches, and the backward "
        "of {} cannot be split, so that the gradients of its weights would be added up in that order; put "
        "the input gradients of each stage in ascending order",
        *unsplit_nodes_.begin()));
  }
  if (!walk.leads_to_deferred()) {
    backward.run();
    return {};
  }
  return walk.run(std::move(backward));
}

}  // namespace gpipe::detail
