// The CNN that is measured: 12 basic blocks of 32, 64 and 128 channels, four each, for images of 32 x 32, unless it is
// asked for in other sizes.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

namespace gpipe::benchmarks {

struct BasicBlockImpl : torch::nn::Module {
  explicit BasicBlockImpl(int width)
      : first(convolution(width)), second(convolution(width)), norm1(width), norm2(width) {
    register_module("first", first);
    register_module("norm1", norm1);
    register_module("second", second);
    register_module("norm2", norm2);
  }
  static torch::nn::Conv2d convolution(int width) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(width, width, 3).padding(1).bias(false));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return torch::relu(input + norm2(second(torch::relu(norm1(first(input))))));
  }
  torch::nn::Conv2d first, second;
  torch::nn::BatchNorm2d norm1, norm2;
};
TORCH_MODULE(BasicBlock);

inline torch::nn::Sequential make_basic_block_cnn(int first_width = 32, int blocks_per_width = 4) {
  torch::nn::Sequential model;
  int channels = 3;
  for (const int width : {first_width, 2 * first_width, 4 * first_width}) {
    model->push_back(fmt::format("widen{}", width),
                     torch::nn::Conv2d(
                         torch::nn::Conv2dOptions(channels, width, 3).padding(1).stride(width == first_width ? 1 : 2)));
    for (int block = 0; block < blocks_per_width; ++block) {
      model->push_back(fmt::format("block{}_{}", width, block), BasicBlock(width));
    }
    channels = width;
  }
  model->push_back("pool", torch::nn::AdaptiveAvgPool2d(torch::nn::AdaptiveAvgPool2dOptions(1)));
  model->push_back("flatten", torch::nn::Flatten());
  model->push_back("head", torch::nn::Linear(channels, 10));
  return model;
}

}  // namespace gpipe::benchmarks
