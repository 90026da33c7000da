#include "gpipe/transport/c10d/proven_store.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/transport/c10d/socket.h"

namespace gpipe {
namespace {

std::string to_string(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

ProvenStore::ProvenStore(FileDescriptor socket, std::chrono::milliseconds timeout, std::string master_host)
    : c10d::Store(timeout), longest_(timeout), socket_(std::move(socket)), master_host_(std::move(master_host)) {}

StoreReply ProvenStore::ask(StoreRequest request, const std::string& body, std::string* value) {
  if (request.key_bytes > kMostKeyBytes || request.value_bytes > kMostValueBytes ||
      request.other_value_bytes > kMostValueBytes) {
    throw InvalidArgument(fmt::format(
        "a key of {} bytes with a value of {} is too long for the store: at most {} and {}", request.key_bytes,
        std::max(request.value_bytes, request.other_value_bytes), kMostKeyBytes, kMostValueBytes));
  }
  std::string message(reinterpret_cast<const char*>(&request), sizeof request);
  message += body;
  const std::lock_guard<std::mutex> lock(mutex_);
  const Deadline deadline = std::chrono::steady_clock::now() + longest_;
  StoreReply reply;
  std::string result;
  bool good = socket_.is_open() && write_all(socket_.get(), message.data(), message.size(), deadline) &&
              read_all(socket_.get(), &reply, sizeof reply, deadline) && reply.value_bytes <= kMostValueBytes;
  if (good) {
    result.resize(reply.value_bytes);
    good = read_all(socket_.get(), result.data(), result.size(), deadline);
  }
  if (!good) {
    socket_.reset();
    throw PeerError({0, master_host_, 0, "", -1}, "its store does not answer any more; see that rank's own output");
  }
  if (reply.status == StoreReply::kFull) {
    throw InvalidArgument(fmt::format("the store is full: it takes {} bytes", kMostStoreBytes));
  }
  if (value != nullptr) *value = std::move(result);
  return reply;
}

void ProvenStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  StoreRequest request{StoreRequest::kSet, static_cast<std::uint32_t>(key.size()),
                       static_cast<std::uint32_t>(value.size()), 0, 0};
  ask(request, key + to_string(value));
}

std::vector<std::uint8_t> ProvenStore::compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                                  const std::vector<std::uint8_t>& value) {
  StoreRequest request{StoreRequest::kCompareSet, static_cast<std::uint32_t>(key.size()),
                       static_cast<std::uint32_t>(expected.size()), static_cast<std::uint32_t>(value.size()), 0};
  std::string result;
  ask(request, key + to_string(expected) + to_string(value), &result);
  return {result.begin(), result.end()};
}

bool ProvenStore::find(const std::string& key, std::string& value) {
  const StoreRequest request{StoreRequest::kGet, static_cast<std::uint32_t>(key.size()), 0, 0, 0};
  return ask(request, key, &value).status == StoreReply::kDone;
}

void ProvenStore::hurry(std::chrono::milliseconds longest) {
  const std::lock_guard<std::mutex> lock(mutex_);
  longest_ = std::min(longest_, longest);
}

std::vector<std::uint8_t> ProvenStore::get(const std::string& key) {
  wait({key});
  std::string value;
  find(key, value);
  return {value.begin(), value.end()};
}

std::int64_t ProvenStore::add(const std::string& key, std::int64_t value) {
  const StoreRequest request{StoreRequest::kAdd, static_cast<std::uint32_t>(key.size()), 0, 0, value};
  return ask(request, key).number;
}

bool ProvenStore::deleteKey(const std::string& key) {
  const StoreRequest request{StoreRequest::kDelete, static_cast<std::uint32_t>(key.size()), 0, 0, 0};
  return ask(request, key).status == StoreReply::kDone;
}

bool ProvenStore::check(const std::vector<std::string>& keys) {
  std::string ignored;
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return find(key, ignored); });
}

std::int64_t ProvenStore::getNumKeys() { return ask({StoreRequest::kCount, 0, 0, 0, 0}, "").number; }

void ProvenStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void ProvenStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  constexpr std::chrono::microseconds kLongestPause{10'000};
  // Some of c10d's callers do not know the run's timeout and give five minutes.
  const auto end = std::chrono::steady_clock::now() + std::min(timeout, timeout_);
  for (const std::string& key : keys) {
    std::chrono::microseconds pause{200};
    while (!check({key})) {
      TORCH_CHECK(std::chrono::steady_clock::now() < end, "timed out waiting for the key '", key, "' of the store");
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }
}

}  // namespace gpipe
