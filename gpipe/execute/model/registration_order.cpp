#include "gpipe/execute/model/registration_order.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace gpipe {

std::vector<int> registration_order(const std::vector<std::string>& names) {
  struct Node {
    int layer = -1;
    std::vector<std::pair<std::string, std::unique_ptr<Node>>> children;
    void list(std::vector<int>& order) const {
      if (layer >= 0) order.push_back(layer);
      for (const auto& [part, child] : children) child->list(order);
    }
  };
  Node root;
  for (std::size_t layer = 0; layer < names.size(); ++layer) {
    const std::string& name = names[layer];
    Node* node = &root;
    for (std::size_t begin = 0; begin <= name.size();) {
      const std::size_t dot = std::min(name.find('.', begin), name.size());
      const std::string part = name.substr(begin, dot - begin);
      auto found = std::find_if(node->children.begin(), node->children.end(),
                                [&](const auto& child) { return child.first == part; });
      if (found == node->children.end()) {
        node->children.emplace_back(part, std::make_unique<Node>());
        found = node->children.end() - 1;
      }
      node = found->second.get();
      begin = dot + 1;
    }
    node->layer = static_cast<int>(layer);
  }
  std::vector<int> order;
  root.list(order);
  return order;
}

}  // namespace gpipe
