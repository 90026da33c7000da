#include "gpipe/transport/c10d/store.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

bool is_within_limits(const StoreRequest& request) {
  return request.kind <= StoreRequest::kAdd && request.key_bytes <= kMostKeyBytes &&
         request.value_bytes <= kMostValueBytes && request.unused == 0;
}

}  // namespace

StoreServer::StoreServer(const std::string& address, int port, ListenerTerms terms)
    : wake_(make_pipe()), listener_(listen_on(address, port), std::move(terms)) {
  std::vector<pollfd> entries;
  listener_.watch(entries);
  port_ = name_of(entries.front().fd).port;
  thread_ = std::thread([this] { run(); });
}

StoreServer::~StoreServer() {
  wake_.write_end.reset();  // the thread sees the end of the pipe
  thread_.join();
}

std::string StoreServer::refusals() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return listener_.refusals();
}

void StoreServer::run() {
  while (true) {
    std::vector<pollfd> entries;
    entries.push_back({wake_.read_end.get(), POLLIN, 0});
    for (const auto& client : clients_) {
      const short events = client->output.empty() ? POLLIN : POLLOUT;
      entries.push_back({client->socket.get(), events, 0});
    }
    listener_.watch(entries);
    poll(entries.data(), entries.size(), listener_.milliseconds());
    if (entries.front().revents != 0) return;
    clients_.erase(
        std::remove_if(clients_.begin(), clients_.end(), [this](const auto& client) { return !serve(*client); }),
        clients_.end());
    const std::lock_guard<std::mutex> lock(mutex_);
    for (FileDescriptor& joined : listener_.attend()) {
      clients_.push_back(std::make_unique<Client>(Client{std::move(joined), "", ""}));
    }
  }
}

bool StoreServer::serve(Client& client) {
  while (true) {
    // A client that does not take its reply is not heard.
    while (!client.output.empty()) {
      const ssize_t put = send(client.socket.get(), client.output.data(), client.output.size(), MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return errno == EAGAIN;
      client.output.erase(0, static_cast<std::size_t>(put));
    }
    StoreRequest request;
    std::size_t wanted = sizeof request;
    if (client.input.size() >= sizeof request) {
      std::memcpy(&request, client.input.data(), sizeof request);
      if (!is_within_limits(request)) return false;
      wanted += std::size_t{request.key_bytes} + request.value_bytes;
      if (client.input.size() == wanted) {
        client.output = answer(request, client.input.data() + sizeof request);
        client.input.clear();
        continue;
      }
    }
    const std::size_t before = client.input.size();
    client.input.resize(wanted);
    const ssize_t got = recv(client.socket.get(), client.input.data() + before, wanted - before, 0);
    client.input.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
  }
}

bool StoreServer::store(const std::string& key, std::string value) {
  const auto found = values_.find(key);
  const std::int64_t before = found == values_.end() ? 0 : static_cast<std::int64_t>(key.size() + found->second.size());
  const std::int64_t after = num_bytes_ - before + static_cast<std::int64_t>(key.size() + value.size());
  if (after > kMostStoreBytes) return false;
  num_bytes_ = after;
  values_[key] = std::move(value);
  return true;
}

std::string StoreServer::answer(const StoreRequest& request, const char* body) {
  const std::string key(body, request.key_bytes);
  const auto found = values_.find(key);
  StoreReply reply;
  std::string result;
  switch (request.kind) {
    case StoreRequest::kSet:
      if (!store(key, {body + request.key_bytes, request.value_bytes})) reply.status = StoreReply::kFull;
      break;
    case StoreRequest::kGet:
      if (found == values_.end()) reply.status = StoreReply::kNoSuchKey;
      if (found != values_.end()) result = found->second;
      break;
    case StoreRequest::kAdd:
      if (found != values_.end()) {  // kept as digits, as c10d's own stores do
        std::from_chars(found->second.data(), found->second.data() + found->second.size(), reply.number);
      }
      reply.number += request.number;
      if (!store(key, std::to_string(reply.number))) reply.status = StoreReply::kFull;
      break;
  }
  reply.value_bytes = static_cast<std::uint32_t>(result.size());
  return std::string(reinterpret_cast<const char*>(&reply), sizeof reply) + result;
}

ProvenStore::ProvenStore(FileDescriptor socket, std::chrono::milliseconds timeout, std::string master_host)
    : c10d::Store(timeout), longest_(timeout), socket_(std::move(socket)), master_host_(std::move(master_host)) {}

StoreReply ProvenStore::ask(StoreRequest::Kind kind, const std::string& key, const std::string& value,
                            std::int64_t number, std::string* found) {
  if (key.size() > kMostKeyBytes || value.size() > kMostValueBytes) {
    throw InvalidArgument(
        fmt::format("a key of {} bytes with a value of {} is too long for the store: at most {} and {}", key.size(),
                    value.size(), kMostKeyBytes, kMostValueBytes));
  }
  const StoreRequest request{kind, static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size()), 0,
                             number};
  const std::string message = std::string(reinterpret_cast<const char*>(&request), sizeof request) + key + value;
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
  if (found != nullptr) *found = std::move(result);
  return reply;
}

void ProvenStore::set_text(const std::string& key, const std::string& value) { ask(StoreRequest::kSet, key, value); }

void ProvenStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  set_text(key, {value.begin(), value.end()});
}

bool ProvenStore::find(const std::string& key, std::string& value) {
  return ask(StoreRequest::kGet, key, "", 0, &value).status == StoreReply::kDone;
}

std::vector<std::uint8_t> ProvenStore::get(const std::string& key) {
  wait({key});
  std::string value;
  find(key, value);
  return {value.begin(), value.end()};
}

std::int64_t ProvenStore::add(const std::string& key, std::int64_t value) {
  return ask(StoreRequest::kAdd, key, "", value).number;
}

bool ProvenStore::deleteKey(const std::string& key) { TORCH_CHECK(false, "the store cannot delete '", key, "'"); }

std::int64_t ProvenStore::getNumKeys() { TORCH_CHECK(false, "the store does not count its keys"); }

bool ProvenStore::check(const std::vector<std::string>& keys) {
  std::string ignored;
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return find(key, ignored); });
}

void ProvenStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  // Some of c10d's callers do not know the run's timeout and give five minutes.
  const Deadline end = std::chrono::steady_clock::now() + std::min(timeout, timeout_);
  for (const std::string& key : keys) {
    const bool is_there = look_until(end, [&] { return check({key}); });
    TORCH_CHECK(is_there, "timed out waiting for the key '", key, "' of the store");
  }
}

void ProvenStore::hurry(std::chrono::milliseconds longest) {
  const std::lock_guard<std::mutex> lock(mutex_);
  longest_ = std::min(longest_, longest);
}

}  // namespace gpipe::detail
