// How the launcher learns that the ranks have met: see report_meeting.
#pragma once

#include <string>

namespace gpipe::cli {

// A place for the file that rank 0 leaves. It goes when this goes.
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

}  // namespace gpipe::cli
