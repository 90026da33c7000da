// The state of libtorch's learning rate schedulers, as a part of a TrainingState.
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include "gpipe/checkpoint/checkpoint.h"

namespace gpipe {

// Puts how often the scheduler was stepped into state.learning_rate, before save_checkpoint. The rate itself is the
// optimizer's, which is saved with it.
void save_scheduler(TrainingState& state, const torch::optim::LRScheduler& scheduler);

// After load_checkpoint, with what that has returned: the scheduler goes on as the one that was saved. It is made as at
// the beginning of the training, before load_checkpoint, so that a scheduler that computes from the rates it began with
// has those. Throws InvalidArgument if the state holds no scheduler, or one of another type; nothing has changed then.
// Adds to state.warnings if the optimizer's learning rates are not those of the save.
void load_scheduler(TrainingState& state, torch::optim::LRScheduler& scheduler);

}  // namespace gpipe
