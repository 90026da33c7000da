// The two parts of a layer's backward, given or derived.
#pragma once

#include <algorithm>

#include "gpipe/plan/profile.h"

namespace gpipe {

struct BackwardParts {
  double input_grad_seconds = 0;
  double weight_grad_seconds = 0;
};

inline BackwardParts backward_parts(const LayerProfile& layer) {
  const auto rest = [&](double part) { return std::max(0.0, layer.backward_seconds - part); };
  const double input_grad = layer.input_grad_seconds    ? *layer.input_grad_seconds
                            : layer.weight_grad_seconds ? rest(*layer.weight_grad_seconds)
                                                        : layer.backward_seconds / 2;
  return {input_grad, layer.weight_grad_seconds.value_or(rest(input_grad))};
}

}  // namespace gpipe
