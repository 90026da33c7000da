// ProvenStore: c10d's store over connections that have passed the handshake. The server is rank 0's StoreServer.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "gpipe/os/file_descriptor.h"
#include "gpipe/transport/c10d/store_message.h"

namespace gpipe {

// A wait looks again and again, with growing pauses: it is used at the start only, and its connection is always in a
// known state. Throws PeerError (of rank 0) if the server does not answer within the timeout, and from then on;
// c10::Error if a key does not come in time.
//
// Thread-safe.
class ProvenStore : public c10d::Store {
 public:
  // REQUIRES: `socket` has passed the handshake.
  ProvenStore(FileDescriptor socket, std::chrono::milliseconds timeout, std::string master_host);

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

  // Without waiting; false if there is no such key.
  bool find(const std::string& key, std::string& value);

  // From now on the server has this long to answer, if that is less than the timeout.
  void hurry(std::chrono::milliseconds longest);

 private:
  StoreReply ask(StoreRequest request, const std::string& body, std::string* value = nullptr);

  std::mutex mutex_;
  std::chrono::milliseconds longest_;  // for an answer
  FileDescriptor socket_;
  const std::string master_host_;
};

}  // namespace gpipe
