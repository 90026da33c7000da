// U-Net(depth, B, C): an image to an image of the same size, with long skips from the way down to the way up.
#pragma once

#include <torch/arg.h>

#include <cstdint>

#include "gpipe/gpipe.h"

namespace gpipe::models {

struct UNetOptions {
  UNetOptions(std::int64_t depth, std::int64_t num_convs, std::int64_t base_channels)
      : depth_(depth), num_convs_(num_convs), base_channels_(base_channels) {}

  // How often the image is halved.
  TORCH_ARG(std::int64_t, depth);
  // B: convolutions at each level, down as well as up.
  TORCH_ARG(std::int64_t, num_convs);
  // C: channels of the first level; they double from level to level. Even.
  TORCH_ARG(std::int64_t, base_channels);
  TORCH_ARG(std::int64_t, in_channels) = 3;
  TORCH_ARG(std::int64_t, out_channels) = 1;
  // Of whole channels.
  TORCH_ARG(double, dropout) = 0.1;
};

// Flat: a convolution, a dropout, a norm and a ReLU are a layer each; (2 depth + 1) 4 B + 4 depth + 1 in all.
//
//   down0 -- stash ------------------------------------- pop -- up0 -- head
//      down1 -- stash ---------------------- pop -- up1
//          down2 -- stash ------- pop -- up2
//                      bottleneck
//
// [N, in_channels, H, W] to [N, out_channels, H, W], for any H and W of at least 2^(depth + 1): a map that was odd
// before it was halved is padded on its way up. Throws InvalidArgument for options it cannot be built from.
LayerChain unet(const UNetOptions& options);

}  // namespace gpipe::models
