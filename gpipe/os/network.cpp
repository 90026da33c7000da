#include "gpipe/os/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/os/file_descriptor.h"

namespace gpipe::detail {
namespace {

std::map<std::string, std::string> interface_addresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  std::map<std::string, std::string> addresses;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_in address{};
    std::memcpy(&address, entry->ifa_addr, sizeof address);
    char text[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
    addresses.emplace(entry->ifa_name, text);
  }
  return addresses;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

std::string interface_address(const std::string& name) {
  const std::map<std::string, std::string> addresses = interface_addresses();
  const auto found = addresses.find(name);
  if (found != addresses.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [other, address] : addresses) names.push_back(other);
  throw InvalidArgument(
      fmt::format("no network interface '{}' has an IPv4 address here; {}", name,
                  names.empty() ? "none has" : fmt::format("these have: {}", fmt::join(names, ", "))));
}

int free_port(const std::string& address) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  socklen_t size = sizeof name;
  const bool good = inet_pton(AF_INET, address.c_str(), &name.sin_addr) == 1 &&
                    bind(socket.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0 &&
                    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &size) == 0;
  if (!good) {
    throw LaunchError(fmt::format("there is no free port on {}: {}", address, std::strerror(errno)),
                      LaunchError::kNotStarted);
  }
  return ntohs(name.sin_port);
}

}  // namespace gpipe::detail
