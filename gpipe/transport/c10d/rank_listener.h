// RankListener: a listening port that lets in only the ranks that it expects, each once, after the handshake.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "gpipe/os/file_descriptor.h"
#include "gpipe/transport/c10d/handshake.h"

namespace gpipe::detail {

// Who may come in.
struct ListenerTerms {
  std::string secret;
  Purpose purpose = Purpose::kStore;
  int rank = 0;  // who listens
  int size = 1;  // of the world
  std::set<int> expected;
};

// Nothing blocks. At most `kMostCandidates` connections wait for their proof, each for `kProofSeconds`; one more makes
// the oldest give way, so that those who say nothing keep nobody out. When the last expected rank is in, the port is
// closed.
//
// Thread-compatible.
class RankListener {
 public:
  static constexpr std::size_t kMostCandidates = 128;
  static constexpr double kProofSeconds = 5;

  RankListener(FileDescriptor listener, ListenerTerms terms)
      : listener_(std::move(listener)), terms_(std::move(terms)) {}

  // Adds what there is to wait for with poll().
  void watch(std::vector<pollfd>& entries) const;
  // For poll(): until the next candidate's time is over; -1 if there is none.
  int milliseconds() const;
  // Takes what has come since; gives the connections, non-blocking, of those who have proven themselves.
  std::vector<FileDescriptor> attend();
  // How many were turned away, and why the last one was; empty if none was.
  std::string refusals() const;

 private:
  struct Candidate {
    FileDescriptor socket;
    Deadline deadline;
    bool has_said_hello = false;
    std::size_t num_bytes = 0;  // of the message it is sending
    Hello hello;
    Challenge challenge;
    Proof proof{};
  };
  // What became of a candidate.
  enum class Outcome { kWaits, kGone, kProven };

  void accept_all();
  Outcome attend(Candidate& candidate);
  bool answer_hello(Candidate& candidate);
  Outcome answer_proof(Candidate& candidate);
  void refuse(const char* why);

  FileDescriptor listener_;
  ListenerTerms terms_;
  std::deque<Candidate> candidates_;  // the oldest first
  long long num_refused_ = 0;
  std::string last_refusal_;
};

}  // namespace gpipe::detail
