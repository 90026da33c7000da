// Meta kernels: what libtorch's Meta device lacks to run our models on tensors without data.
#pragma once

namespace gpipe {

// Makes convolutions, batch, instance, layer and group norm, ReLU, embeddings and adaptive average pooling work on Meta
// tensors, forward and backward: results have the shapes, types and strides that the CPU's would have, and a graph
// keeps as many bytes. Registers only what libtorch does not have by itself; the first call counts, the others do
// nothing. Other operations without a Meta kernel still throw c10::NotImplementedError.
//
// Thread-safe; but libtorch's dispatcher takes no lock for a registration: call it before other threads run layers.
void use_meta_kernels();

}  // namespace gpipe
