#include "gpipe/model/skip.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

#include "gpipe/model/skip_store.h"

namespace gpipe {
namespace {

// Note [A node for each stash]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A tensor x that is stashed is mostly used by the layers that follow, too. Its gradient is then a sum over all uses,
// and autograd adds them up one by one in the reverse order of the forward: (pop + use2) + use1. When the skip crosses
// a stage, pop's part arrives by itself. Floating-point sums depend on their order, so the order must not depend on the
// cut: a node of its own between x and the stashed tensor collects pop's part in both cases, and adds it to the others'
// where the stash stands in the forward: (use2 + use1) + pop.
class StashBackward : public torch::autograd::Node {
 public:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override { return std::move(grads); }
};

at::Tensor behind_a_node(const at::Tensor& tensor) {
  at::Tensor result = tensor.detach();
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) return result;
  const std::shared_ptr<torch::autograd::Node> node(new StashBackward(), torch::autograd::deleteNode);
  node->set_next_edges({torch::autograd::impl::gradient_edge(tensor)});
  torch::autograd::create_gradient_edge(result, node);
  return result;
}

thread_local detail::SkipMap plain_store;
thread_local detail::SkipStore* current_store = nullptr;
thread_local std::string current_namespace;  // "" or "outer/inner/"

detail::SkipStore& store() { return current_store != nullptr ? *current_store : plain_store; }

}  // namespace

void stash(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    store().put(current_namespace + name, {});
    return;
  }
  at::Tensor stashed = behind_a_node(tensor);
  const std::int64_t version = detail::version_of(stashed);
  store().put(current_namespace + name, {std::move(stashed), version});
}

at::Tensor pop(const std::string& name) {
  detail::Stashed stashed = store().take(current_namespace + name);
  if (stashed.tensor.defined() && detail::version_of(stashed.tensor) != stashed.version) {
    throw SkipError(fmt::format(
        "the tensor stashed as \"{}\" was changed in place before it was popped; stash a clone() of it", name));
  }
  return std::move(stashed.tensor);
}

SkipNamespace::SkipNamespace(const std::string& name) : outer_size_(current_namespace.size()) {
  current_namespace += name + "/";
}

SkipNamespace::~SkipNamespace() { current_namespace.resize(outer_size_); }

namespace detail {

void SkipMap::put(const std::string& name, Stashed value) { stashed[name] = std::move(value); }

Stashed SkipMap::take(const std::string& name) {
  const auto found = stashed.find(name);
  if (found == stashed.end()) missing_skip(name);
  Stashed value = std::move(found->second);
  stashed.erase(found);
  return value;
}

SkipScope::SkipScope(SkipStore& store)
    : outer_(std::exchange(current_store, &store)), outer_namespace_(std::exchange(current_namespace, "")) {}

SkipScope::~SkipScope() {
  current_store = outer_;
  current_namespace = std::move(outer_namespace_);
}

std::int64_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

void missing_skip(const std::string& name) {
  throw SkipError(
      fmt::format("\"{}\" is popped, but no earlier layer has stashed it; stash it before, in the same forward", name));
}

}  // namespace detail
}  // namespace gpipe
