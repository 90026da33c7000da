// Replica share: the part of a mini-batch that a replica of the pipeline trains on.
#pragma once

#include "gpipe/launch/world.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe {

// For a program in which every rank has the whole mini-batch: the rows of this rank's replica. The shares are
// consecutive, and differ by at most one row. Undefined tensors stay so. All of the batch if there are no replicas.
// Shares memory with it.
//
// Throws InvalidArgument for fewer rows than replicas, and as split_batch does.
Tensors replica_share(const Tensors& batch, const World& world);
at::Tensor replica_share(const at::Tensor& batch, const World& world);

}  // namespace gpipe
