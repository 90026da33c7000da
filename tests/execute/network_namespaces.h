// Hosts in miniature: network namespaces, each with a cable of its own to a switch in a further one. Needs root.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace gpipe::test {

// Whatever is made is removed again. Nothing outside of the namespaces is touched.
class NetworkNamespaces {
 public:
  // Throws std::runtime_error, with the command, where the system does not allow them.
  explicit NetworkNamespaces(int size) : size_(size) {
    try {
      run("ip netns add " + switch_name());
      run("ip -n " + switch_name() + " link add switch type bridge");
      run("ip -n " + switch_name() + " link set switch up");
      for (int host = 0; host < size; ++host) add(host);
    } catch (...) {
      remove();
      throw;
    }
  }
  ~NetworkNamespaces() { remove(); }
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  std::string name(int host) const { return prefix_ + std::to_string(host); }
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }

  // Pulls the cable out at the switch: what is sent to the host, or by it, is lost without a word.
  void cut(int host) const { run("ip -n " + switch_name() + " link set port" + std::to_string(host) + " down"); }

 private:
  std::string switch_name() const { return prefix_ + "switch"; }

  void add(int host) const {
    const std::string port = "port" + std::to_string(host);
    run("ip netns add " + name(host));
    run("ip link add eth0 netns " + name(host) + " type veth peer name " + port + " netns " + switch_name());
    run("ip -n " + switch_name() + " link set " + port + " master switch");
    run("ip -n " + switch_name() + " link set " + port + " up");
    run("ip -n " + name(host) + " address add " + address(host) + "/24 dev eth0");
    run("ip -n " + name(host) + " link set eth0 up");
    run("ip -n " + name(host) + " link set lo up");
  }

  void remove() const {
    for (int host = 0; host < size_; ++host) try_to("ip netns delete " + name(host));
    try_to("ip netns delete " + switch_name());
  }

  static bool try_to(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  static void run(const std::string& command) {
    if (!try_to(command)) throw std::runtime_error("'" + command + "' failed");
  }

  const int size_;
  const std::string prefix_ = "gpipe" + std::to_string(getpid()) + "-";
};

}  // namespace gpipe::test
