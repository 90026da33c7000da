// Strangers at the open ports of a job that waits for its last rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "gpipe/transport/c10d/handshake.h"
#include "gpipe/transport/c10d/socket.h"
#include "tests/execute/rank_processes.h"
#include "tests/os/comes_true.h"

namespace gpipe::test {
namespace {

using detail::FileDescriptor;

// TCP ports a process listens on.
std::set<int> listening_ports(pid_t process) {
  const std::string folder = "/proc/" + std::to_string(process);
  std::set<std::string> sockets;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder + "/fd", ignored)) {
    sockets.insert(std::filesystem::read_symlink(file.path(), ignored).string());
  }
  std::set<int> ports;
  std::ifstream table(folder + "/net/tcp");
  std::string line;
  std::getline(table, line);  // the titles
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    const bool is_listening = state == "0A";
    if (!is_listening || sockets.count("socket:[" + inode + "]") == 0) continue;
    ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

std::int64_t resident_bytes(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  std::int64_t all = 0;
  std::int64_t resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Random bytes, too few and far too many, headers that are cut off, and headers that promise more than there is.
std::string hostile_bytes(std::mt19937& random) {
  const auto noise = [&](std::size_t size) {
    std::string bytes(size, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    return bytes;
  };
  detail::Hello hello;
  const std::string header(reinterpret_cast<const char*>(&hello), sizeof hello);
  switch (random() % 5) {
    case 0:
      return noise(random() % 200);
    case 1:
      return header.substr(0, random() % header.size());
    case 2:
      return header + noise(random() % 100);
    case 3:
      return header + std::string(64, '\xff') + noise(4096);
    default:
      return noise(100'000);
  }
}

// Whether somebody was there.
bool bother(int port, std::mt19937& random) {
  const FileDescriptor connection = detail::connect_to("127.0.0.1", port, detail::deadline_in(0.5));
  if (!connection.is_open()) return false;
  const std::string bytes = hostile_bytes(random);
  detail::write_all(connection.get(), bytes.data(), bytes.size(), detail::deadline_in(0));
  return true;
}

std::string losses_of(const RankProcesses& ranks, int rank) {
  std::istringstream lines(ranks.output(rank));
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("loss ", 0) == 0) result += line + "\n";
  }
  return result;
}

TEST(HostileBytes, TenThousandConnectionsChangeNothing) {
  RankProcesses undisturbed(2, "Quickstart", 30);
  for (int rank = 0; rank < 2; ++rank) ASSERT_EQ(undisturbed.wait(rank, 60), 0) << undisturbed.output(rank);

  RankProcesses ranks(2, "Quickstart", 60);
  ranks.send(1, SIGSTOP);  // the first rank waits for it, and its ports are open as long
  ASSERT_TRUE(comes_true([&] { return !listening_ports(ranks.process(0)).empty(); }, 60)) << ranks.output(0);
  std::mt19937 random(11);
  constexpr int kNumConnections = 10'000;
  std::int64_t before = 0;
  for (int count = 0; count < kNumConnections;) {
    const std::set<int> ports = listening_ports(ranks.process(0));
    ASSERT_FALSE(ports.empty()) << ranks.output(0);
    for (int repeat = 0; repeat < 100; ++repeat) {
      for (const int port : ports) count += bother(port, random) ? 1 : 0;
    }
    if (before == 0) before = resident_bytes(ranks.process(0));
  }
  EXPECT_LT(resident_bytes(ranks.process(0)) - before, std::int64_t{32} << 20);

  // And on, while the job runs, as long as there is a port.
  std::atomic<bool> done = false;
  std::thread stranger([&] {
    while (!done) {
      for (const int rank : {0, 1}) {
        for (const int port : listening_ports(ranks.process(rank))) bother(port, random);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the ranks have a processor, too
    }
  });
  ranks.send(1, SIGCONT);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.wait(rank, 60), 0) << ranks.output(rank);
    EXPECT_FALSE(losses_of(ranks, rank).empty());
    EXPECT_EQ(losses_of(ranks, rank), losses_of(undisturbed, rank));
  }
  done = true;
  stranger.join();
}

}  // namespace
}  // namespace gpipe::test
