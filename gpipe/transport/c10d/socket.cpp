#include "gpipe/transport/c10d/socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "gpipe/error.h"
#include "gpipe/launch/world.h"

namespace gpipe::detail {
namespace {

constexpr int kBacklog = 128;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses look_up(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {error == 0 ? found : nullptr, freeaddrinfo};
}

bool wait_for(int socket, short events, Deadline deadline) {
  pollfd entry{socket, events, 0};
  while (true) {
    const int ready = poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// `move` moves what it can of the bytes behind the first `done`.
template <typename Move>
bool move_all(int socket, std::size_t size, short events, Deadline deadline, const Move& move) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t moved = move(done);
    if (moved > 0) done += static_cast<std::size_t>(moved);
    if (moved > 0) continue;
    if (moved == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(socket, events, deadline)) return false;
  }
  return true;
}

}  // namespace

Deadline deadline_in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<Deadline::duration>(std::chrono::duration<double>(seconds));
}

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1'000'000));
}

std::string resolve(const std::string& host) {
  const Addresses found = look_up(host, 0, 0);
  if (found == nullptr) {
    throw HandshakeError(
        fmt::format("nobody here knows the address of '{}', where the ranks are to meet; set "
                    "GPIPE_MASTER_ADDR to rank 0's address",
                    host));
  }
  return name_of(found->ai_addr, found->ai_addrlen).address;
}

bool is_loopback_number(const std::string& address) { return address.rfind("127.", 0) == 0 || address == "::1"; }

FileDescriptor listen_on(const std::string& address, int port) {
  const Addresses found = look_up(address, port, AI_NUMERICHOST | AI_PASSIVE);
  FileDescriptor listener;
  if (found != nullptr) {
    listener.reset(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    // A port whose last connections are still fading away may be taken again.
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener.get(), found->ai_addr, found->ai_addrlen) == 0 && listen(listener.get(), kBacklog) == 0) {
      return listener;
    }
  }
  throw HandshakeError(
      fmt::format("cannot listen on {}, port {}: {}; set GPIPE_MASTER_ADDR, GPIPE_MASTER_PORT and "
                  "GPIPE_INTERFACE to what rank 0's host has and nobody else uses",
                  address, port, std::strerror(errno)));
}

FileDescriptor connect_to(const std::string& address, int port, Deadline deadline) {
  const Addresses found = look_up(address, port, AI_NUMERICHOST);
  if (found == nullptr) return {};
  FileDescriptor connection(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection.is_open()) return {};
  const int on = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(connection.get(), found->ai_addr, found->ai_addrlen) != 0) {
    if (errno != EINPROGRESS || !wait_for(connection.get(), POLLOUT, deadline)) return {};
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return {};
  }
  return connection;
}

SocketName name_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (getnameinfo(address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) return {};
  return {host, std::stoi(port)};
}

SocketName name_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return name_of(reinterpret_cast<sockaddr*>(&address), size);
}

bool read_all(int socket, void* bytes, std::size_t size, Deadline deadline) {
  return move_all(socket, size, POLLIN, deadline,
                  [&](std::size_t done) { return recv(socket, static_cast<char*>(bytes) + done, size - done, 0); });
}

bool write_all(int socket, const void* bytes, std::size_t size, Deadline deadline) {
  return move_all(socket, size, POLLOUT, deadline, [&](std::size_t done) {
    return send(socket, static_cast<const char*>(bytes) + done, size - done, MSG_NOSIGNAL);
  });
}

}  // namespace gpipe::detail
