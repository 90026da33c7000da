// What ranks know and tell of restarts.
#pragma once

namespace gpipe {

// How often the job was started again before this start: GPIPE_RESTART, 0 without it. A program that is not at 0 goes
// on from its latest checkpoint. Throws EnvironmentError.
int restart_number();

// By rank 0, when all ranks have met: leaves the file that GPIPE_MET_FILE names, if there is one.
void report_meeting();

}  // namespace gpipe
