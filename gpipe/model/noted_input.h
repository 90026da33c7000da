// What a layer was given: noted before it runs, told when it throws.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Optional.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// The first tensor, by type and shape: cheap to note, and mostly what is wrong.
class NotedInput {
 public:
  NotedInput() = default;
  explicit NotedInput(const Tensors& tensors);
  // " on Double [2, 4], with Float parameters"; empty if nothing is known.
  std::string describe(const torch::nn::Module& layer) const;

 private:
  c10::optional<at::ScalarType> type_;
  c10::SmallVector<std::int64_t, 5> sizes_;
};

}  // namespace gpipe::detail
