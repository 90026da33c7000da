#include "gpipe/torchscript/operation_weights.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "gpipe/torchscript/graph_walk.h"

namespace gpipe::detail {
namespace {

using torch::jit::Node;

// A tensor that waits for so many heavy operations or more is a skip.
constexpr int kLongWay = 8;

bool is_heavy(const Node& node) {
  static const std::set<std::string_view> names = {"aten::conv1d",
                                                   "aten::conv2d",
                                                   "aten::conv3d",
                                                   "aten::conv_transpose1d",
                                                   "aten::conv_transpose2d",
                                                   "aten::conv_transpose3d",
                                                   "aten::_convolution",
                                                   "aten::convolution",
                                                   "aten::linear",
                                                   "aten::bilinear",
                                                   "aten::addmm",
                                                   "aten::mm",
                                                   "aten::matmul",
                                                   "aten::bmm",
                                                   "aten::baddbmm",
                                                   "aten::einsum",
                                                   "aten::tensordot",
                                                   "aten::lstm",
                                                   "aten::gru",
                                                   "aten::rnn_tanh",
                                                   "aten::rnn_relu",
                                                   "aten::lstm_cell",
                                                   "aten::gru_cell",
                                                   "aten::rnn_tanh_cell",
                                                   "aten::rnn_relu_cell",
                                                   "aten::embedding",
                                                   "aten::embedding_bag",
                                                   "aten::scaled_dot_product_attention",
                                                   "aten::_native_multi_head_attention",
                                                   "aten::_transformer_encoder_layer_fwd"};
  return names.count(node.kind().toQualString()) != 0;
}

bool is_light(const Node& node) {
  if (!node.blocks().empty()) return true;
  if (!node.kind().is_aten() && node.kind().is_prim()) return false;
  return std::any_of(node.outputs().begin(), node.outputs().end(), [](const torch::jit::Value* output) {
    return output->type()->kind() == c10::TypeKind::TensorType;
  });
}

// Whether the value is a part of a larger tensor, with gaps in its memory: that is copied on its way to another
// process.
bool is_piece(const torch::jit::Value& value) {
  static const std::set<std::string_view> names = {
      "aten::slice",        "aten::select",       "aten::narrow",           "aten::chunk",  "aten::split",
      "aten::tensor_split", "aten::unsafe_chunk", "aten::unsafe_split",     "aten::unbind", "aten::expand",
      "aten::expand_as",    "aten::as_strided",   "aten::split_with_sizes", "aten::unfold", "aten::diagonal",
      "aten::__getitem__",  "prim::ListUnpack"};
  return names.count(value.node()->kind().toQualString()) != 0;
}

// Of handing the value on, against 1 for a tensor.
int cost_of(const torch::jit::Value& value) {
  return value.type()->kind() == c10::TypeKind::TensorType && !is_piece(value) ? 1 : 2;
}

}  // namespace

int num_heavy_operations(Node* node) {
  int count = 0;
  for_each_within(node, [&](Node* inner) { count += is_heavy(*inner) ? 1 : 0; });
  return count;
}

CutCosts cut_costs(const FlatGraph& flat, const CutRules& rules) {
  CutCosts costs;
  costs.allowed = rules.allowed;
  costs.cost.assign(flat.nodes.size(), 0);
  std::vector<int> heavy_before = {0};
  for (Node* node : flat.nodes) {
    costs.heavy.push_back(num_heavy_operations(node));
    costs.is_light.push_back(is_light(*node) || costs.heavy.back() > 0);
    heavy_before.push_back(heavy_before.back() + costs.heavy.back());
  }
  for (const FlatValue& value : flat.values) {
    const bool is_tensor = value.value->type()->kind() == c10::TypeKind::TensorType;
    int from = value.made_by;
    for (const int user : value.used_by) {
      const int to = std::min(user, flat.num_nodes() - 1);
      const bool is_skip = is_tensor && heavy_before[to] - heavy_before[from + 1] >= kLongWay;
      for (int cut = from + 1; cut <= to && !is_skip; ++cut) costs.cost[cut] += cost_of(*value.value);
      from = std::max(from, to);
    }
  }
  return costs;
}

}  // namespace gpipe::detail
