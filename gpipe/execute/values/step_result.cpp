#include "gpipe/execute/values/step_result.h"

#include <ATen/ATen.h>

namespace gpipe {

at::Tensor LossValue::as_tensor(double weight) { return at::scalar_tensor(weight, at::kDouble); }

}  // namespace gpipe
