// clip_grad_norm over all stages, wherever they are.
#pragma once

#include "gpipe/execute/engine/engine.h"

namespace gpipe::detail {

// See gpipe::clip_grad_norm_.
double clip_grad_norm(Engine& engine, double max_norm, double norm_type);

}  // namespace gpipe::detail
