// What `gpipe train` says before and after.
#pragma once

#include <string>

#include "train/run_options.h"
#include "train/trainer.h"

namespace gpipe::train {

// "amoebanet-d: 9 layers, 0.3 M parameters; 2 stages, 8 micro-batches, 1f1b"
std::string describe_start(const Pipeline& pipeline, const Task& task);

// How it ended, the measures, the speed, where the time went, the memory of each stage, the files.
std::string describe_end(const TrainingResult& result, const Pipeline& pipeline, const Task& task,
                         const TrainerOptions& options);

// What would have made it faster, see advice.h; empty if there is nothing to say.
std::string describe_advice(const TrainingResult& result, const Pipeline& pipeline, const RunOptions& options);

}  // namespace gpipe::train
