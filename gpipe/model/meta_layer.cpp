#include "gpipe/model/meta_layer.h"

#include <ATen/ATen.h>

#include "gpipe/model/meta_kernels.h"
#include "gpipe/model/no_init_scope.h"

namespace gpipe {
namespace {

// What set_data does, which refuses another kind of device.
void move_to_meta(at::Tensor tensor) {
  if (!tensor.defined() || tensor.is_meta()) return;
  if (tensor.is_leaf()) tensor.mutable_grad().reset();
  const at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  tensor.unsafeGetTensorImpl()->shallow_copy_from(meta.getIntrusivePtr());
}

}  // namespace

void move_to_meta(torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) move_to_meta(parameter);
  for (const at::Tensor& buffer : module.buffers()) move_to_meta(buffer);
}

Layer build_on_meta(const LayerChain& chain, int layer) {
  use_meta_kernels();
  const NoInitScope scope;
  Layer built = chain.build(layer, /*seed=*/0);
  move_to_meta(*built.module);
  return built;
}

}  // namespace gpipe
