// MiniBatch: one mini-batch, ready to run on all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

struct MiniBatch {
  std::vector<MicroBatch> micro_batches;  // their tensors only where the first stage is
  std::vector<bool> requires_grad;        // of the inputs
  bool needs_grad = true;
  std::vector<int> idle;  // assemblies that all ranks could use
  // Of this replica's part of the mini-batch of all replicas; without replicas it is all there is.
  int first_micro_batch = 0;
  std::int64_t first_sample = 0;
  std::int64_t num_samples = 0;  // of all replicas
};

}  // namespace gpipe::detail
