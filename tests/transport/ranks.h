// Ranks of one world as threads of the test, over real connections on the loopback.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/launch/world.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/c10d/remote_flow.h"
#include "tests/os/reserved_port.h"

namespace gpipe {

inline World world_of(int rank, int size, int port) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.host = "host" + std::to_string(rank);
  world.master_port = port;
  world.network_interface = "lo";
  world.secret = "a secret that all of them share";
  world.timeout_seconds = 20;
  return world;
}

// Runs `work` once for each rank; gives what each threw, null if nothing.
inline std::vector<std::exception_ptr> run_each(int size, const std::function<void(int rank)>& work) {
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// The same with connected ranks; rethrows the first error.
inline void run_ranks(int size, const std::function<void(detail::Peers& peers)>& work) {
  const test::ReservedPort port;
  for (const std::exception_ptr& error : run_each(size, [&](int rank) {
         detail::Peers peers(world_of(rank, size, port.number()));
         work(peers);
         peers.leave_together();
       })) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

inline std::string text_of(const std::exception_ptr& error) {
  if (error == nullptr) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

template <typename Expected>
bool is_a(const std::exception_ptr& error) {
  if (error == nullptr) return false;
  try {
    std::rethrow_exception(error);
  } catch (const Expected&) {
    return true;
  } catch (...) {
    return false;
  }
}

inline detail::RemoteFlowOptions flow_to(int peer, int capacity = 2) {
  detail::RemoteFlowOptions options;
  options.flow = {FlowKind::kActivation, 0, 1};
  options.id = 3;
  options.peer = peer;
  options.capacity = capacity;
  return options;
}

}  // namespace gpipe
