// AmoebaNet-D(L, D): image classification with a cell that was found by evolution. The paper's own model.
#pragma once

#include <torch/arg.h>

#include <cstdint>

#include "gpipe/gpipe.h"

namespace gpipe::models {

struct AmoebaNetOptions {
  // L and D of the paper.
  AmoebaNetOptions(std::int64_t num_layers, std::int64_t num_filters)
      : num_layers_(num_layers), num_filters_(num_filters) {}

  // Normal cells: three groups of a third each. A multiple of 3.
  TORCH_ARG(std::int64_t, num_layers);
  // Channels of the first group's cells; they double from group to group. A multiple of 8.
  TORCH_ARG(std::int64_t, num_filters);
  TORCH_ARG(std::int64_t, num_classes) = 1000;
  TORCH_ARG(std::int64_t, in_channels) = 3;
  // How far the stem shrinks the image before the first group: by its stride, and by half in each reduction. The
  // paper's is for 224 x 224; for 28 x 28 or 32 x 32 a stride of 1 and one reduction, or none, leave the cells
  // something to look at.
  TORCH_ARG(std::int64_t, stem_stride) = 2;
  TORCH_ARG(std::int64_t, stem_reductions) = 2;
  TORCH_ARG(bool, deferred_batch_norm) = true;
};

// Of num_layers + 4 + stem_reductions layers:
//
//   stem  reduction x2  normal x L/3  reduction  normal x L/3  reduction  normal x L/3  classifier
//
// A cell takes and returns (state, skip), the outputs of the two layers before it. Images of any size go in, [N, C, H,
// W]; logits come out, [N, num_classes]. Throws InvalidArgument for options it cannot be built from.
LayerChain amoebanet_d(const AmoebaNetOptions& options);

}  // namespace gpipe::models
