#include "models/amoebanet.h"

#include <fmt/format.h>

#include <string>
#include <tuple>
#include <vector>

#include "models/batch_norm.h"
#include "models/checks.h"

namespace gpipe::models {
namespace {

using torch::nn::Conv2dOptions;
using torch::nn::Sequential;
using State = std::tuple<at::Tensor, at::Tensor>;  // state, skip

enum class Operation { kIdentity, kConv1x1, kConv3x3, kConv1x7, kAvgPool3x3, kMaxPool3x3, kMaxPool2x2 };

// What an operation is applied to: nodes 0 and 1 are the cell's inputs, further ones its sums.
struct Edge {
  int source;
  Operation operation;
};

// Node n + 2 is the sum of edges 2n and 2n + 1; the nodes named in `outputs` are concatenated.
struct Genotype {
  std::vector<Edge> edges;
  std::vector<int> outputs;
};

const Genotype& normal_genotype() {
  static const auto* genotype = new Genotype{{{1, Operation::kConv1x1},
                                              {1, Operation::kMaxPool3x3},
                                              {1, Operation::kIdentity},
                                              {0, Operation::kConv1x7},
                                              {0, Operation::kConv1x1},
                                              {0, Operation::kConv1x7},
                                              {2, Operation::kMaxPool3x3},
                                              {2, Operation::kIdentity},
                                              {1, Operation::kAvgPool3x3},
                                              {5, Operation::kConv1x1}},
                                             {0, 3, 4, 6}};
  return *genotype;
}

const Genotype& reduction_genotype() {
  static const auto* genotype = new Genotype{{{0, Operation::kMaxPool2x2},
                                              {0, Operation::kMaxPool3x3},
                                              {2, Operation::kIdentity},
                                              {1, Operation::kConv3x3},
                                              {2, Operation::kConv1x7},
                                              {2, Operation::kMaxPool3x3},
                                              {3, Operation::kIdentity},
                                              {1, Operation::kMaxPool2x2},
                                              {2, Operation::kAvgPool3x3},
                                              {3, Operation::kConv1x1}},
                                             {4, 5, 6}};
  return *genotype;
}

void push_relu_conv_norm(Sequential& layers, const Conv2dOptions& conv, bool deferred) {
  layers->push_back(torch::nn::ReLU());
  layers->push_back(torch::nn::Conv2d(Conv2dOptions(conv).bias(false)));
  push_batch_norm(layers, conv.out_channels(), deferred);
}

// Empty for the identity.
Sequential make_operation(Operation operation, std::int64_t channels, std::int64_t stride, bool deferred) {
  const std::int64_t narrow = channels / 4;  // of the bottlenecks
  Sequential layers;
  switch (operation) {
    case Operation::kIdentity:
      break;
    case Operation::kConv1x1:
      push_relu_conv_norm(layers, Conv2dOptions(channels, channels, 1).stride(stride), deferred);
      break;
    case Operation::kConv3x3:
      push_relu_conv_norm(layers, Conv2dOptions(channels, narrow, 1), deferred);
      push_relu_conv_norm(layers, Conv2dOptions(narrow, narrow, 3).stride(stride).padding(1), deferred);
      push_relu_conv_norm(layers, Conv2dOptions(narrow, channels, 1), deferred);
      break;
    case Operation::kConv1x7:
      push_relu_conv_norm(layers, Conv2dOptions(channels, narrow, 1), deferred);
      push_relu_conv_norm(layers, Conv2dOptions(narrow, narrow, {1, 7}).stride({1, stride}).padding({0, 3}), deferred);
      push_relu_conv_norm(layers, Conv2dOptions(narrow, narrow, {7, 1}).stride({stride, 1}).padding({3, 0}), deferred);
      push_relu_conv_norm(layers, Conv2dOptions(narrow, channels, 1), deferred);
      break;
    case Operation::kAvgPool3x3:
      layers->push_back(
          torch::nn::AvgPool2d(torch::nn::AvgPool2dOptions(3).stride(stride).padding(1).count_include_pad(false)));
      break;
    case Operation::kMaxPool3x3:
      layers->push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(stride).padding(1)));
      break;
    case Operation::kMaxPool2x2:  // rounds up, as the strided convolutions do, so that odd images fit together
      layers->push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2).stride(stride).ceil_mode(true)));
      break;
  }
  return layers;
}

// Halves an image without leaving out three pixels of four: half of the channels come from the even ones, the others
// from the odd ones.
struct FactorizedReduceImpl : torch::nn::Module {
  FactorizedReduceImpl(std::int64_t from, std::int64_t to, bool deferred)
      : even(register_module("even", torch::nn::Conv2d(Conv2dOptions(from, to / 2, 1).stride(2).bias(false)))),
        odd(register_module("odd", torch::nn::Conv2d(Conv2dOptions(from, to / 2, 1).stride(2).bias(false)))) {
    push_batch_norm(norm, to, deferred);
    register_module("norm", norm);
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor x = at::relu(input);
    const at::Tensor shifted = at::constant_pad_nd(x.slice(2, 1).slice(3, 1), {0, 1, 0, 1});
    return norm->forward(at::cat({even(x), odd(shifted)}, 1));
  }

  torch::nn::Conv2d even;
  torch::nn::Conv2d odd;
  Sequential norm;
};
TORCH_MODULE(FactorizedReduce);

struct StemImpl : torch::nn::Module {
  StemImpl(std::int64_t from, std::int64_t to, std::int64_t stride, bool deferred) {
    layers->push_back(torch::nn::Conv2d(Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false)));
    push_batch_norm(layers, to, deferred);
    register_module("layers", layers);
  }

  State forward(const at::Tensor& image) {
    const at::Tensor x = layers->forward(image);
    return {x, x};
  }

  Sequential layers;
};
TORCH_MODULE(Stem);

struct CellShape {
  std::int64_t state_channels;  // of the layer before
  std::int64_t skip_channels;   // of the one before that
  std::int64_t channels;        // of each node
  bool is_reduction;
  bool skip_is_larger;  // the layer before was a reduction
};

const Genotype& genotype_of(const CellShape& shape) {
  return shape.is_reduction ? reduction_genotype() : normal_genotype();
}

struct CellImpl : torch::nn::Module {
  CellImpl(const CellShape& shape, bool deferred) : genotype(genotype_of(shape)) {
    push_relu_conv_norm(state_in, Conv2dOptions(shape.state_channels, shape.channels, 1), deferred);
    register_module("state_in", state_in);
    if (shape.skip_is_larger) {
      skip_in->push_back(FactorizedReduce(shape.skip_channels, shape.channels, deferred));
    } else if (shape.skip_channels != shape.channels) {
      push_relu_conv_norm(skip_in, Conv2dOptions(shape.skip_channels, shape.channels, 1), deferred);
    }
    register_module("skip_in", skip_in);
    for (std::size_t edge = 0; edge < genotype.edges.size(); ++edge) {
      const bool reduces = shape.is_reduction && genotype.edges[edge].source < 2;
      operations.push_back(make_operation(genotype.edges[edge].operation, shape.channels, reduces ? 2 : 1, deferred));
      register_module(fmt::format("operation{}", edge), operations.back());
    }
  }

  State forward(const State& inputs) {
    const auto& [state, skip] = inputs;
    std::vector<at::Tensor> nodes{apply(state_in, state), apply(skip_in, skip)};
    for (std::size_t edge = 0; edge < operations.size(); edge += 2) {
      nodes.push_back(apply(operations[edge], nodes[genotype.edges[edge].source]) +
                      apply(operations[edge + 1], nodes[genotype.edges[edge + 1].source]));
    }
    std::vector<at::Tensor> outputs;
    for (const int node : genotype.outputs) outputs.push_back(nodes[node]);
    return {at::cat(outputs, 1), state};
  }

  static at::Tensor apply(Sequential& layers, const at::Tensor& input) {
    return layers->is_empty() ? input : layers->forward(input);
  }

  const Genotype& genotype;
  Sequential state_in;
  Sequential skip_in;
  std::vector<Sequential> operations;
};
TORCH_MODULE(Cell);

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl(std::int64_t channels, std::int64_t num_classes)
      : linear(register_module("linear", torch::nn::Linear(channels, num_classes))) {}

  at::Tensor forward(const State& inputs) { return linear(std::get<0>(inputs).mean({2, 3})); }

  torch::nn::Linear linear;
};
TORCH_MODULE(Classifier);

void check(const AmoebaNetOptions& options) {
  check_multiple("num_layers", options.num_layers(), 3);
  check_multiple("num_filters", options.num_filters(), 8);
  check_at_least("num_classes", options.num_classes(), 1);
  check_at_least("in_channels", options.in_channels(), 1);
  check_at_least("stem_stride", options.stem_stride(), 1);
  check_at_least("stem_reductions", options.stem_reductions(), 0);
  check_at_most("stem_reductions", options.stem_reductions(), 3);  // the stem then has an eighth of the filters
}

}  // namespace

LayerChain amoebanet_d(const AmoebaNetOptions& options) {
  check(options);
  const bool deferred = options.deferred_batch_norm();
  const std::int64_t stem_channels = options.num_filters() >> options.stem_reductions();
  LayerChain chain;
  chain.add<Stem>("stem", options.in_channels(), stem_channels, options.stem_stride(), deferred);
  CellShape shape{stem_channels, stem_channels, stem_channels, false, false};
  const auto add_cell = [&](const std::string& name, bool is_reduction) {
    if (is_reduction) shape.channels *= 2;
    shape.is_reduction = is_reduction;
    chain.add<Cell>(name, shape, deferred);
    shape.skip_channels = shape.state_channels;
    shape.state_channels = shape.channels * static_cast<std::int64_t>(genotype_of(shape).outputs.size());
    shape.skip_is_larger = is_reduction;
  };
  for (int cell = 0; cell < options.stem_reductions(); ++cell) add_cell(fmt::format("stem_reduction{}", cell), true);
  for (int group = 0; group < 3; ++group) {
    if (group > 0) add_cell(fmt::format("reduction{}", group), true);
    for (int cell = 0; cell < options.num_layers() / 3; ++cell) {
      add_cell(fmt::format("group{}_cell{}", group, cell), false);
    }
  }
  chain.add<Classifier>("classifier", shape.state_channels, options.num_classes());
  return chain;
}

}  // namespace gpipe::models
