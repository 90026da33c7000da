#include "gpipe/launch/restart.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "gpipe/error.h"
#include "gpipe/text/number.h"

namespace gpipe {

using detail::to_number;

int restart_number() {
  constexpr const char* kVariable = "GPIPE_RESTART";
  const char* const value = std::getenv(kVariable);
  if (value == nullptr || *value == '\0') return 0;
  const std::optional<int> number = to_number<int>(value);
  if (number && *number >= 0) return *number;
  throw EnvironmentError(
      fmt::format("{} is '{}', which is not a number from 0 on; unset it, or let the launcher set it", kVariable,
                  value),
      kVariable);
}

void report_meeting() {
  const char* const path = std::getenv("GPIPE_MET_FILE");
  if (path == nullptr || *path == '\0') return;
  const int file = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file >= 0) close(file);  // else the launcher takes it that they have not met
}

}  // namespace gpipe
