// Deadlines, and TCP sockets that keep them: to listen on one address, to connect, to read and write a known number of
// bytes.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "gpipe/os/file_descriptor.h"

namespace gpipe::detail {

using Deadline = std::chrono::steady_clock::time_point;

// In seconds from now.
Deadline deadline_in(double seconds);
// For poll(): 0 if it has passed.
int milliseconds_until(Deadline deadline);
// Looks again and again, with growing pauses, whether it is true; false if it is not until the deadline.
template <typename IsTrue>
bool look_until(Deadline deadline, const IsTrue& is_true) {
  for (std::chrono::microseconds pause{200}; !is_true();
       pause = std::min(2 * pause, std::chrono::microseconds(10'000))) {
    if (milliseconds_until(deadline) == 0) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

// The numeric address of a host, or that address itself. Throws HandshakeError if nobody knows it.
std::string resolve(const std::string& host);
// 127.0.0.0/8 or ::1, as a numeric address.
bool is_loopback_number(const std::string& address);

// Listens on that numeric address only; port 0 lets the system choose. Non-blocking. Throws HandshakeError.
FileDescriptor listen_on(const std::string& address, int port);

// Non-blocking. Not open if nobody listens there, or has not answered by then.
FileDescriptor connect_to(const std::string& address, int port, Deadline deadline);

// Of this end. Port 0 and an empty address if it has none.
struct SocketName {
  std::string address;
  int port = 0;
};
SocketName name_of(int socket);
SocketName name_of(const sockaddr* address, socklen_t size);

// All of the bytes, or false: the other side has closed, or it is too late.
bool read_all(int socket, void* bytes, std::size_t size, Deadline deadline);
bool write_all(int socket, const void* bytes, std::size_t size, Deadline deadline);

}  // namespace gpipe::detail
