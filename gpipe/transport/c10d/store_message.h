// What is said over a connection to the store, after the handshake: one request, one reply.
#pragma once

#include <cstdint>

namespace gpipe {

// The key follows, then two values; most requests have one or none.
struct StoreRequest {
  enum Kind : std::uint32_t { kSet, kGet, kAdd, kDelete, kCount, kCompareSet };
  Kind kind = kSet;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
  std::uint32_t other_value_bytes = 0;  // of kCompareSet: what is to replace the first
  std::int64_t number = 0;              // of kAdd
};
static_assert(sizeof(StoreRequest) == 24);

// The value follows.
struct StoreReply {
  enum Status : std::uint32_t { kDone, kNoSuchKey, kFull };
  Status status = kDone;
  std::uint32_t value_bytes = 0;
  std::int64_t number = 0;  // the sum, or the count
};
static_assert(sizeof(StoreReply) == 16);

constexpr std::uint32_t kMostKeyBytes = 4096;
constexpr std::uint32_t kMostValueBytes = 4 << 20;
constexpr std::int64_t kMostStoreBytes = 256 << 20;  // of all keys and values

}  // namespace gpipe
