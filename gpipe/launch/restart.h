// What a launcher and its ranks tell each other about restarts.
#pragma once

#include <string>

namespace gpipe {

// How often the job was started again before this start: GPIPE_RESTART, 0 without it. A program that is not at 0 goes on from its
// latest checkpoint. Throws EnvironmentError.
int restart_number();

// By rank 0, when all ranks have met: leaves the file that GPIPE_MET_FILE names, if there is one.
void report_meeting();

// The launcher's side of that: a place for the file. It goes when this goes.
class MeetingFile {
 public:
  // Throws LaunchError.
  MeetingFile();
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

  std::string path() const { return folder_ + "/met"; }
  // Whether the ranks have met since the last call.
  bool take();

 private:
  std::string folder_;
};

}  // namespace gpipe
