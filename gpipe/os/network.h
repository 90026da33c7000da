// The name of this host, its interfaces and its ports.
#pragma once

#include <string>

namespace gpipe::detail {

// "localhost" if it has none.
std::string host_name();

// The IPv4 address of an interface such as "lo". Throws InvalidArgument, naming those that have one.
std::string interface_address(const std::string& name);

// A TCP port of an IPv4 address of this host that nobody listens on at this moment. Throws LaunchError if there is
// none.
int free_port(const std::string& address);

}  // namespace gpipe::detail
