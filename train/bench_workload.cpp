#include "train/bench_workload.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "gpipe/error.h"
#include "models/amoebanet.h"
#include "models/unet.h"
#include "train/bench_cnn.h"
#include "train/bench_transformer.h"

namespace gpipe::train {
namespace {

constexpr int kModelSeed = 1;
constexpr int kNumClasses = 10;

struct LstmLayerImpl : torch::nn::Module {
  LstmLayerImpl(std::int64_t input_width, std::int64_t width)
      : lstm(torch::nn::LSTMOptions(input_width, width).batch_first(true)) {
    register_module("lstm", lstm);
  }
  at::Tensor forward(const at::Tensor& input) { return std::get<0>(lstm(input)); }
  torch::nn::LSTM lstm;
};
TORCH_MODULE(LstmLayer);

at::Tensor class_loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}
at::Tensor square_loss(const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); }

at::Tensor ids(std::int64_t limit, at::IntArrayRef shape) { return torch::randint(limit, shape, torch::kLong); }

// The initial weights of a model that is built at once come from the generator of the process.
std::function<LayerChain()> built_by(std::function<torch::nn::Sequential()> make) {
  return [make = std::move(make)] {
    torch::manual_seed(kModelSeed);
    return LayerChain(make());
  };
}

Workload transformer(bool quick) {
  benchmarks::TransformerSizes sizes;
  if (quick) sizes = {4, 32, 2, 64, 16, 50};
  const std::int64_t batch = quick ? 16 : 32;
  const nlohmann::json json = {{"blocks", sizes.num_blocks},
                               {"width", sizes.width},
                               {"heads", sizes.num_heads},
                               {"hidden", sizes.hidden},
                               {"sequence", sizes.sequence},
                               {"tokens", sizes.num_tokens},
                               {"batch", batch}};
  return {"transformer",
          fmt::format("{} Transformer layers, d {}, {} heads, feed-forward {}, sequence {}, {} tokens, batch {}",
                      sizes.num_blocks, sizes.width, sizes.num_heads, sizes.hidden, sizes.sequence, sizes.num_tokens,
                      batch),
          built_by([sizes] { return benchmarks::make_transformer(sizes); }),
          {ids(sizes.num_tokens, {batch, sizes.sequence})},
          ids(sizes.num_tokens, {batch, sizes.sequence}),
          &benchmarks::token_loss,
          json.dump()};
}

Workload cnn(bool quick) {
  const int width = quick ? 4 : 32;
  const int blocks = quick ? 1 : 4;
  const std::int64_t batch = quick ? 16 : 64;
  const std::int64_t size = quick ? 8 : 32;
  const nlohmann::json json = {{"width", width}, {"blocks", blocks}, {"size", size}, {"batch", batch}};
  return {"cnn",
          fmt::format("{} basic blocks of {}, {} and {} channels, images of {} x {}, batch {}", 3 * blocks, width,
                      2 * width, 4 * width, size, size, batch),
          built_by([width, blocks] { return benchmarks::make_basic_block_cnn(width, blocks); }),
          {torch::randn({batch, 3, size, size})},
          ids(kNumClasses, {batch}),
          &class_loss,
          json.dump()};
}

Workload amoebanet(bool quick) {
  const std::int64_t layers = quick ? 3 : 6;
  const std::int64_t filters = quick ? 8 : 32;
  const std::int64_t batch = quick ? 16 : 32;
  const std::int64_t size = quick ? 16 : 64;
  return {"amoebanet",
          fmt::format("AmoebaNet-D ({}, {}), images of {} x {}, batch {}", layers, filters, size, size, batch),
          [layers, filters] {
            return models::amoebanet_d(
                models::AmoebaNetOptions(layers, filters).num_classes(kNumClasses).deferred_batch_norm(false));
          },
          {torch::randn({batch, 3, size, size})},
          ids(kNumClasses, {batch}),
          &class_loss,
          ""};
}

Workload unet(bool quick) {
  const std::int64_t depth = quick ? 1 : 3;
  const std::int64_t convs = quick ? 1 : 2;
  const std::int64_t channels = quick ? 4 : 16;
  const std::int64_t batch = quick ? 16 : 32;
  const std::int64_t size = quick ? 16 : 64;
  return {"unet",
          fmt::format("U-Net ({}, {}, {}) with its skips, images of {} x {}, batch {}", depth, convs, channels, size,
                      size, batch),
          [depth, convs, channels] { return models::unet(models::UNetOptions(depth, convs, channels).dropout(0)); },
          {torch::randn({batch, 3, size, size})},
          torch::randn({batch, 1, size, size}),
          &square_loss,
          ""};
}

Workload lstm(bool quick) {
  const std::int64_t layers = quick ? 2 : 4;
  const std::int64_t width = quick ? 16 : 256;
  const std::int64_t sequence = quick ? 8 : 64;
  const std::int64_t tokens = quick ? 50 : 1000;
  const std::int64_t batch = quick ? 16 : 64;
  const nlohmann::json json = {
      {"layers", layers}, {"width", width}, {"sequence", sequence}, {"tokens", tokens}, {"batch", batch}};
  return {
      "lstm",
      fmt::format("{} LSTM layers, width {}, sequence {}, {} tokens, batch {}", layers, width, sequence, tokens, batch),
      built_by([=] {
        torch::nn::Sequential model;
        model->push_back("embedding", torch::nn::Embedding(tokens, width));
        for (int layer = 0; layer < layers; ++layer) {
          model->push_back(fmt::format("lstm{}", layer), LstmLayer(width, width));
        }
        model->push_back("head", torch::nn::Linear(width, tokens));
        return model;
      }),
      {ids(tokens, {batch, sequence})},
      ids(tokens, {batch, sequence}),
      &benchmarks::token_loss,
      json.dump()};
}

// The same whether it is quick or not: it is as small as can be.
Workload tiny(bool /*quick*/) {
  static constexpr std::int64_t kLayers = 16;
  static constexpr std::int64_t kTinyWidth = 16;
  constexpr std::int64_t kBatch = 64;
  const nlohmann::json json = {{"layers", kLayers}, {"width", kTinyWidth}, {"batch", kBatch}};
  return {"tiny",
          fmt::format("{} linear layers of {} x {}, batch {}: next to nothing to compute", kLayers, kTinyWidth,
                      kTinyWidth, kBatch),
          built_by([] {
            torch::nn::Sequential model;
            for (int layer = 0; layer < kLayers; ++layer) {
              model->push_back(fmt::format("linear{}", layer), torch::nn::Linear(kTinyWidth, kTinyWidth));
            }
            return model;
          }),
          {torch::randn({kBatch, kTinyWidth})},
          torch::randn({kBatch, kTinyWidth}),
          &square_loss,
          json.dump()};
}

struct NamedWorkload {
  const char* name;
  Workload (*make)(bool quick);
};
constexpr NamedWorkload kWorkloads[] = {{"transformer", transformer},
                                        {"cnn", cnn},
                                        {"amoebanet", amoebanet},
                                        {"unet", unet},
                                        {"lstm", lstm},
                                        {"tiny", tiny}};

}  // namespace

const std::vector<std::string>& workload_names() {
  static const auto* names = [] {
    auto* all = new std::vector<std::string>;
    for (const NamedWorkload& workload : kWorkloads) all->emplace_back(workload.name);
    return all;
  }();
  return *names;
}

Workload make_workload(const std::string& name, bool quick) {
  torch::manual_seed(0);  // the data are those of every process that makes them
  for (const NamedWorkload& workload : kWorkloads) {
    if (workload.name == name) return workload.make(quick);
  }
  throw InvalidArgument(fmt::format("there is no workload \"{}\"", name));
}

}  // namespace gpipe::train
