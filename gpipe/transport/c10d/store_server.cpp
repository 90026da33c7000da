#include "gpipe/transport/c10d/store_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace gpipe {
namespace {

std::size_t body_bytes(const StoreRequest& request) {
  return std::size_t{request.key_bytes} + request.value_bytes + request.other_value_bytes;
}

bool is_within_limits(const StoreRequest& request) {
  return request.kind <= StoreRequest::kCompareSet && request.key_bytes <= kMostKeyBytes &&
         request.value_bytes <= kMostValueBytes && request.other_value_bytes <= kMostValueBytes;
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
    for (RankListener::Connection& joined : listener_.attend()) {
      clients_.push_back(std::make_unique<Client>());
      clients_.back()->socket = std::move(joined.socket);
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
      wanted += body_bytes(request);
      if (client.input.size() == wanted) {
        answer(client, request, client.input.data() + sizeof request);
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

void StoreServer::answer(Client& client, const StoreRequest& request, const char* body) {
  const std::string key(body, request.key_bytes);
  std::string value(body + request.key_bytes, request.value_bytes);
  const auto found = values_.find(key);
  StoreReply reply;
  std::string result;
  switch (request.kind) {
    case StoreRequest::kSet:
      if (!store(key, std::move(value))) reply.status = StoreReply::kFull;
      break;
    case StoreRequest::kGet:
      if (found == values_.end()) reply.status = StoreReply::kNoSuchKey;
      if (found != values_.end()) result = found->second;
      break;
    case StoreRequest::kAdd: {
      reply.number = request.number;
      if (found != values_.end()) {  // kept as digits, as c10d's own stores do
        std::int64_t number = 0;
        std::from_chars(found->second.data(), found->second.data() + found->second.size(), number);
        reply.number += number;
      }
      if (!store(key, std::to_string(reply.number))) reply.status = StoreReply::kFull;
      break;
    }
    case StoreRequest::kDelete:
      if (found == values_.end()) {
        reply.status = StoreReply::kNoSuchKey;
      } else {
        num_bytes_ -= static_cast<std::int64_t>(key.size() + found->second.size());
        values_.erase(found);
      }
      break;
    case StoreRequest::kCount:
      reply.number = static_cast<std::int64_t>(values_.size());
      break;
    case StoreRequest::kCompareSet: {
      const bool matches = found == values_.end() ? value.empty() : found->second == value;
      std::string other(body + request.key_bytes + request.value_bytes, request.other_value_bytes);
      if (matches && !store(key, other)) reply.status = StoreReply::kFull;
      const auto now = values_.find(key);
      result = now == values_.end() ? value : now->second;
      break;
    }
  }
  reply.value_bytes = static_cast<std::uint32_t>(result.size());
  client.output.assign(reinterpret_cast<const char*>(&reply), sizeof reply);
  client.output += result;
}

}  // namespace gpipe
