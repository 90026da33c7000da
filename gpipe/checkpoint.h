// Checkpoints and weights: save them, load them, resume from them. Needs the target gpipe::gpipe.
#pragma once

#include <torch/torch.h>

#include "gpipe/checkpoint/checkpoint.h"
#include "gpipe/checkpoint/checkpoint_writer.h"
#include "gpipe/checkpoint/inspect_model.h"
#include "gpipe/checkpoint/resumed_parts.h"
#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/checkpoint/weights.h"
