// LossParts: what the micro-batches add to the loss and the metrics of a step, in order.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "gpipe/execute/values/step_result.h"

namespace gpipe::detail {

struct LossParts {
  struct Metric {
    at::Tensor parts;        // one by one, scaled as losses are, or the rows
    bool is_scalar = false;  // of each micro-batch
  };

  at::Tensor losses;   // along the first dimension, as StageLoss has scaled them; undefined: there is no loss
  at::Tensor weights;  // of the micro-batches, that the loss gave; undefined: it gave none
  std::map<std::string, Metric> metrics;
};

// Those of the next samples behind those of the first. Throws InvalidArgument if only one of the two has weights, or
// other metrics.
void append(LossParts& parts, const LossParts& more);

// Into the result's loss, weight and metrics; the same bits whoever had the parts.
void add_up(const LossParts& parts, StepResult& result);

}  // namespace gpipe::detail
