#include "gpipe/execute/replica_share.h"

#include <fmt/format.h>

#include "gpipe/error.h"

namespace gpipe {

Tensors replica_share(const Tensors& batch, const World& world) {
  if (world.num_replicas == 1 || num_rows(batch) < 0) return batch;
  std::vector<MicroBatch> shares = split_batch(batch, world.num_replicas);
  if (static_cast<int>(shares.size()) < world.num_replicas) {
    throw InvalidArgument(
        fmt::format("a batch of {} rows for {} replicas; each needs a row: use larger batches, or fewer replicas",
                    num_rows(batch), world.num_replicas));
  }
  return std::move(shares[world.replica()].tensors);
}

at::Tensor replica_share(const at::Tensor& batch, const World& world) {
  return replica_share(Tensors{batch}, world).front();
}

}  // namespace gpipe
