// The folder of a run's checkpoints, as the run finds it.
#pragma once

#include <string>
#include <vector>

namespace gpipe::train {

// Paths of the checkpoints in it, whole or not: what `latest` names, then the others, the last first.
std::vector<std::string> checkpoints_in(const std::string& folder);

// Throws cli::UsageError if a checkpoint could not be written there, which it finds out by making the folder, if there
// is none; and removes it again, since the training may be refused yet.
void check_checkpoint_dir(const std::string& folder);

// Returns how many there were. Throws CheckpointError.
int remove_checkpoints(const std::string& folder);

// For who names a folder, and is given the latest whole one in it: tells on standard error which newer ones are
// damaged. False if there are none.
bool warn_of_damaged(const std::string& folder);

}  // namespace gpipe::train
