// The store: keys and values that the ranks of a run share while they meet. Rank 0 serves it, and every rank asks it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "gpipe/os/file_descriptor.h"
#include "gpipe/transport/c10d/rank_listener.h"

namespace gpipe::detail {

// What is said over a connection to the store, after the handshake: one request, which its key and its value follow,
// and one reply, which the value that was asked for follows.
struct StoreRequest {
  enum Kind : std::uint32_t { kSet, kGet, kAdd };
  Kind kind = kSet;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
  std::uint32_t unused = 0;
  std::int64_t number = 0;  // of kAdd
};
static_assert(sizeof(StoreRequest) == 24);

struct StoreReply {
  enum Status : std::uint32_t { kDone, kNoSuchKey, kFull };
  Status status = kDone;
  std::uint32_t value_bytes = 0;
  std::int64_t number = 0;  // the sum
};
static_assert(sizeof(StoreReply) == 16);

constexpr std::uint32_t kMostKeyBytes = 4096;
constexpr std::uint32_t kMostValueBytes = 4 << 20;
constexpr std::int64_t kMostStoreBytes = 256 << 20;  // of all keys and values

// The store itself, on rank 0. One thread answers all. Once every rank has come in, the port is closed.
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
  // The reply to a request, with the value that follows it.
  std::string answer(const StoreRequest& request, const char* body);
  bool store(const std::string& key, std::string value);

  Pipe wake_;
  int port_ = 0;
  mutable std::mutex mutex_;  // of the listener
  RankListener listener_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::map<std::string, std::string> values_;
  std::int64_t num_bytes_ = 0;
  std::thread thread_;
};

// A rank's connection to the store, as c10d wants it. What c10d does not use here throws c10::Error: compareSet,
// deleteKey and getNumKeys.
//
// A wait looks again and again: it is used at the start only, and its connection is always in a known state. Throws
// PeerError (of rank 0) if the server does not answer within the timeout, and from then on; c10::Error if a key does
// not come in time.
//
// Thread-safe.
class ProvenStore : public c10d::Store {
 public:
  // REQUIRES: `socket` has passed the handshake.
  ProvenStore(FileDescriptor socket, std::chrono::milliseconds timeout, std::string master_host);

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  std::int64_t getNumKeys() override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

  // Without waiting; false if there is no such key.
  bool find(const std::string& key, std::string& value);
  void set_text(const std::string& key, const std::string& value);

  // From now on the server has this long to answer, if that is less than the timeout.
  void hurry(std::chrono::milliseconds longest);

 private:
  StoreReply ask(StoreRequest::Kind kind, const std::string& key, const std::string& value = "",
                 std::int64_t number = 0, std::string* found = nullptr);

  std::mutex mutex_;
  std::chrono::milliseconds longest_;  // for an answer
  FileDescriptor socket_;
  const std::string master_host_;
};

}  // namespace gpipe::detail
