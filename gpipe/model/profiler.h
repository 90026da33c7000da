// Profiler: what each layer costs and which skips it uses, found by running the layers on a sample.
#pragma once

#include <cstdint>
#include <functional>

#include "gpipe/model/deferred_weights.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/plan/profile.h"

namespace gpipe {

struct ProfileOptions {
  std::uint64_t seed = 0;
  int repeats = 5;             // of which the median counts, after one that does not
  double budget_seconds = 10;  // no further repeat is begun after this
  // Cores to keep busy meanwhile, as the other workers of a pipeline do: its stages on this machine less one. Without
  // them a layer is measured alone, and is then some per cent faster than in the pipeline. Not used on Meta tensors.
  int busy_neighbours = 0;
  // Counted with the last layer: what becomes of its outputs in training. It returns a scalar.
  std::function<at::Tensor(const Tensors& outputs)> loss;
  // On Meta tensors: what an operation takes is its floating-point operations over this.
  double flops_per_second = 1e12;
  // Measures half of the sample as well, in turns with the whole, and tells by it what a layer costs however small its
  // input: fixed_forward_seconds and fixed_backward_seconds, by which for_micro_batches scales. Needs a sample of at
  // least two rows. A model that refuses half of it, as some batch norms refuse a single row, has none.
  bool fixed_seconds = false;
  // Bytes of activations; replaces libtorch's CPU allocator by one that counts, see MemoryAccount. Without it
  // activation_bytes are 0.
  bool count_bytes = true;
  // What an input gradient leaves to the weight gradient, for deferred_bytes; as in PipelineOptions.
  DeferredWeights deferred_weights = DeferredWeights::kMatrices;
};

// Runs the layers one after the other on `sample`, the inputs of one micro-batch, each forward and backward, in this
// thread, and measures its CPU time and its bytes. Layers that are built already are left exactly as they were, with
// their gradients and buffers, and so are all random generators. Layers of a lazy chain are built for the moment they
// run: the model as a whole needs no memory.
//
// With a sample on the Meta device (torch::kMeta) the layers are built there, too: nothing has data or takes memory,
// bytes are those of the same run on the CPU (without what convolutions need for scratch), and seconds are counted from
// floating-point operations. So a model that exists only on paper can be planned. Each layer is made on the CPU,
// unfilled, and moved: the parameters of one layer must fit the address space.
//
// weight_grad_seconds are what input_grad_seconds leave of backward_seconds. A tied weight counts in each of its
// layers. The loss has nothing fixed: it is not asked for half of the sample, whose targets it may not have.
//
// Throws InvalidArgument for an empty chain or sample, a sample on another device, numbers that make no sense or a loss
// that is no scalar;
// SkipError that lists every skip which is stashed or popped twice, never popped, or popped before it is stashed; what
// a layer throws passes through.
Profile profile(const LayerChain& chain, const Tensors& sample, const ProfileOptions& options = {});
Profile profile(const LayerChain& chain, const at::Tensor& sample, const ProfileOptions& options = {});

}  // namespace gpipe
