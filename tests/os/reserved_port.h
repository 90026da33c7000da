// Ports for tests in which ranks meet.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <stdexcept>

#include "gpipe/os/file_descriptor.h"

namespace gpipe::test {

// A TCP port of the loopback that belongs to the test for as long as this lives. A socket is bound to it and does not
// listen: the system gives the port to nobody who asks for any port, and connections to it are refused, but a rank that
// is told its number can listen on it, because both have set SO_REUSEADDR.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    if (setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(socket_.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) != 0 ||
        getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&name), &size) != 0) {
      throw std::runtime_error("there is no free port on the loopback");
    }
    number_ = ntohs(name.sin_port);
  }

  int number() const { return number_; }

 private:
  detail::FileDescriptor socket_;
  int number_ = 0;
};

}  // namespace gpipe::test
