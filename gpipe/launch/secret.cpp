#include "gpipe/launch/secret.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "gpipe/error.h"

namespace gpipe {

std::string make_secret() {
  std::array<unsigned char, 32> bytes{};
  // Up to 256 bytes come at once, or not at all.
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw LaunchError(fmt::format("the system has no random bits for a secret: {}", std::strerror(errno)),
                      LaunchError::kNotStarted);
  }
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace gpipe
