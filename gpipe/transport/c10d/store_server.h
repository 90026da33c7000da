// StoreServer: keys and values that the ranks of a run share while they meet, on rank 0.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/os/file_descriptor.h"
#include "gpipe/transport/c10d/rank_listener.h"
#include "gpipe/transport/c10d/store_message.h"

namespace gpipe {

// One thread answers all. Once every rank has come in, the port is closed.
//
// Thread-safe.
class StoreServer {
 public:
  // Throws HandshakeError if it cannot listen there.
  StoreServer(const std::string& address, int port, ListenerTerms terms);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const { return port_; }
  // See RankListener.
  std::string refusals() const;

 private:
  struct Client {
    FileDescriptor socket;
    std::string input;   // of a request that is not whole yet
    std::string output;  // of a reply that is not sent yet
  };

  void run();
  // False if the client is gone, or said what no rank says.
  bool serve(Client& client);
  void answer(Client& client, const StoreRequest& request, const char* body);
  bool store(const std::string& key, std::string value);

  Pipe wake_;
  int port_ = 0;
  mutable std::mutex mutex_;  // of the gate
  RankListener listener_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::map<std::string, std::string> values_;
  std::int64_t num_bytes_ = 0;
  std::thread thread_;
};

}  // namespace gpipe
