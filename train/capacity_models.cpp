// The models of Table 1, in miniature and as the paper has them.
#include <torch/torch.h>

#include "models/amoebanet.h"
#include "models/transformer_lm.h"
#include "train/capacity.h"
#include "train/made_up_data.h"

namespace gpipe::train {
namespace {

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
  family.inputs = [=](int rows, at::Device device) { return Tensors{made_up_ids(vocabulary, {rows, length}, device)}; };
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
    return Tensors{made_up_images({rows, channels, image, image}, device)};
  };
  family.targets = [=](int rows, at::Device device) { return Tensors{made_up_ids(classes, {rows}, device)}; };
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
