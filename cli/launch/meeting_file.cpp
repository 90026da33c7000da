#include "cli/launch/meeting_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "gpipe/error.h"

namespace gpipe::cli {

MeetingFile::MeetingFile() : folder_(std::filesystem::temp_directory_path() / "gpipe-launch-XXXXXX") {
  if (mkdtemp(folder_.data()) != nullptr) return;
  throw LaunchError(fmt::format("cannot make a folder for restarts, {}: {}; TMPDIR names another place", folder_,
                                std::strerror(errno)),
                    LaunchError::kNotStarted);
}

MeetingFile::~MeetingFile() {
  take();
  rmdir(folder_.c_str());
}

bool MeetingFile::take() { return unlink(path().c_str()) == 0; }

}  // namespace gpipe::cli
