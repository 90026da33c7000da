// The models of Table 1, in miniature and as the paper has them.
#include <torch/torch.h>

#include "models/amoebanet.h"
#include "models/transformer_lm.h"
#include "train/capacity.h"

namespace gpipe::train {
namespace {

at::Tensor ids(int rows, std::int64_t length, std::int64_t vocabulary, at::Device device) {
  if (device.is_meta()) return at::empty({rows, length}, at::device(device).dtype(at::kLong));
  return at::randint(vocabulary, {rows, length}, at::kLong);
}

// One stack with input and output embeddings of their own, and nothing but matrices: the paper's Transformer-L.
ModelFamily transformer(std::int64_t width, std::int64_t feed_forward, std::int64_t heads, std::int64_t vocabulary,
                        std::int64_t length, int batch) {
  ModelFamily family;
  family.name = "Transformer-L";
  family.unit = "L";
  family.chain = [=](int num_layers) {
    return models::transformer_lm(models::TransformerLmOptions(vocabulary, num_layers)
                                      .width(width)
                                      .feed_forward_width(feed_forward)
                                      .num_heads(heads)
                                      .max_length(length)
                                      .dropout(0)
                                      .bias(false)
                                      .norm_parameters(false));
  };
  family.repeated_layer = 1;  // behind the embedding
  family.batch = batch;
  family.inputs = [=](int rows, at::Device device) { return Tensors{ids(rows, length, vocabulary, device)}; };
  family.targets = family.inputs;
  family.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return torch::nn::functional::cross_entropy(output.flatten(0, 1), target.flatten());
  };
  return family;
}

ModelFamily amoebanet(const models::AmoebaNetOptions& options, int least_size, std::int64_t image, int batch) {
  ModelFamily family;
  family.name = "AmoebaNet-D";
  family.unit = "D";
  family.chain = [=](int num_filters) {
    models::AmoebaNetOptions wide = options;
    return models::amoebanet_d(wide.num_filters(num_filters));
  };
  family.least_size = least_size;
  family.size_step = 8;
  family.batch = batch;
  const std::int64_t channels = options.in_channels();
  const std::int64_t classes = options.num_classes();
  family.inputs = [=](int rows, at::Device device) {
    const at::TensorOptions where = at::device(device).dtype(at::kFloat);
    return Tensors{device.is_meta() ? at::empty({rows, channels, image, image}, where)
                                    : at::randn({rows, channels, image, image}, where)};
  };
  family.targets = [=](int rows, at::Device device) {
    if (device.is_meta()) return Tensors{at::empty({rows}, at::device(device).dtype(at::kLong))};
    return Tensors{at::randint(classes, {rows}, at::kLong)};
  };
  family.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return torch::nn::functional::cross_entropy(output, target);
  };
  return family;
}

}  // namespace

ModelFamily small_transformer() { return transformer(128, 512, 4, 256, 64, 32); }

ModelFamily small_amoebanet(int num_layers) {
  ModelFamily family =
      amoebanet(models::AmoebaNetOptions(num_layers, 8).num_classes(10).stem_stride(2).stem_reductions(1), 8, 32, 32);
  family.largest_size = 256;  // each size is run for its profile
  return family;
}

ModelFamily paper_transformer() { return transformer(2048, 8192, 32, 32000, 1024, 32); }

ModelFamily paper_amoebanet(int num_layers) {
  ModelFamily family = amoebanet(models::AmoebaNetOptions(num_layers, 16), 16, 224, 128);
  family.size_step = 16;
  return family;
}

}  // namespace gpipe::train
