#include "gpipe/transport/c10d/rank_listener.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace gpipe::detail {
namespace {

// All of a short message, into a connection that has sent nothing else of note: there is room, or the other side is
// odd.
template <typename Message>
bool send_whole(int socket, const Message& message) {
  return send(socket, &message, sizeof message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message);
}

}  // namespace

void RankListener::watch(std::vector<pollfd>& entries) const {
  if (!listener_.is_open()) return;
  entries.push_back({listener_.get(), POLLIN, 0});
  for (const Candidate& candidate : candidates_) entries.push_back({candidate.socket.get(), POLLIN, 0});
}

int RankListener::milliseconds() const {
  return candidates_.empty() ? -1 : milliseconds_until(candidates_.front().deadline);
}

std::string RankListener::refusals() const {
  if (num_refused_ == 0) return {};
  return fmt::format("{} connection{} refused, the last because {}", num_refused_,
                     num_refused_ == 1 ? " was" : "s were", last_refusal_);
}

void RankListener::refuse(const char* why) {
  ++num_refused_;
  last_refusal_ = why;
}

void RankListener::accept_all() {
  constexpr int kMostAtOnce = 64;  // so that a flood does not keep others waiting
  for (int count = 0; count < kMostAtOnce; ++count) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      // Out of descriptors: the oldest gives way.
      if ((errno == EMFILE || errno == ENFILE) && !candidates_.empty()) {
        candidates_.pop_front();
        refuse("there were too many at once");
      }
      return;
    }
    if (candidates_.size() == kMostCandidates) {
      candidates_.pop_front();
      refuse("there were too many at once");
    }
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Candidate candidate;
    candidate.socket = std::move(socket);
    candidate.deadline = deadline_in(kProofSeconds);
    candidates_.push_back(std::move(candidate));
  }
}

std::vector<FileDescriptor> RankListener::attend() {
  std::vector<FileDescriptor> proven;
  if (!listener_.is_open()) return proven;
  accept_all();
  std::deque<Candidate> waiting;
  for (Candidate& candidate : candidates_) {
    const Outcome outcome = attend(candidate);
    if (outcome == Outcome::kWaits) waiting.push_back(std::move(candidate));
    if (outcome == Outcome::kProven) proven.push_back(std::move(candidate.socket));
  }
  candidates_ = std::move(waiting);
  if (terms_.expected.empty()) {
    candidates_.clear();
    listener_.reset();
  }
  return proven;
}

RankListener::Outcome RankListener::attend(Candidate& candidate) {
  while (true) {
    char* bytes = candidate.has_said_hello ? reinterpret_cast<char*>(candidate.proof.data())
                                           : reinterpret_cast<char*>(&candidate.hello);
    const std::size_t size = candidate.has_said_hello ? candidate.proof.size() : sizeof candidate.hello;
    const ssize_t got = recv(candidate.socket.get(), bytes + candidate.num_bytes, size - candidate.num_bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (milliseconds_until(candidate.deadline) > 0) return Outcome::kWaits;
      refuse("it did not prove in time that it knows the secret");
      return Outcome::kGone;
    }
    if (got <= 0) {
      refuse("it left before its proof");
      return Outcome::kGone;
    }
    candidate.num_bytes += static_cast<std::size_t>(got);
    if (candidate.num_bytes < size) continue;
    if (candidate.has_said_hello) return answer_proof(candidate);
    if (!answer_hello(candidate)) return Outcome::kGone;
    candidate.has_said_hello = true;
    candidate.num_bytes = 0;
  }
}

bool RankListener::answer_hello(Candidate& candidate) {
  if (candidate.hello.magic != kWireMagic) {
    refuse("its first bytes are not those of gpipe");
    return false;
  }
  const bool is_same_version = candidate.hello.version == kWireVersion;
  candidate.challenge.status = is_same_version ? Status::kWelcome : Status::kOtherVersion;
  candidate.challenge.nonce = make_nonce();
  if (!is_same_version) refuse("it is of another version of gpipe");
  return send_whole(candidate.socket.get(), candidate.challenge) && is_same_version;
}

RankListener::Outcome RankListener::answer_proof(Candidate& candidate) {
  const Hello& hello = candidate.hello;
  Verdict verdict;
  if (!is_same(candidate.proof, joining_proof(terms_.secret, hello, candidate.challenge))) {
    verdict.status = Status::kOtherSecret;
    refuse("its secret is another one; GPIPE_SECRET must be the same on all ranks");
  } else if (hello.purpose != terms_.purpose || hello.size != static_cast<std::uint32_t>(terms_.size) ||
             hello.to_rank != static_cast<std::uint32_t>(terms_.rank) || hello.rank >= hello.size) {
    verdict.status = Status::kOtherWorld;
    refuse("it is of another world");
  } else if (terms_.expected.count(static_cast<int>(hello.rank)) == 0) {
    verdict.status = Status::kNotExpected;
    refuse("that rank was there already");
  } else {
    verdict.proof = welcoming_proof(terms_.secret, hello, candidate.challenge);
  }
  if (!send_whole(candidate.socket.get(), verdict) || verdict.status != Status::kWelcome) return Outcome::kGone;
  terms_.expected.erase(static_cast<int>(hello.rank));
  return Outcome::kProven;
}

}  // namespace gpipe::detail
