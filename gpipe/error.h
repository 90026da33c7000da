// Typed errors: what went wrong, where, what was got and expected, and what to do about it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe {

// Base of every error the library throws on purpose. Anything else that escapes is a defect of ours.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument outside its domain: a count below one, a name that does not exist, costs for another number of stages.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Skip connections that do not fit together: a name stashed or popped twice, never, or in the wrong order.
class SkipError : public Error {
 public:
  using Error::Error;
};

// Text, CSV or JSON that does not follow its grammar. `line` and `column` count from one; zero when the position is
// unknown.
class ParseError : public Error {
 public:
  ParseError(const std::string& what, std::int64_t line, std::int64_t column)
      : Error(what), line_(line), column_(column) {}
  std::int64_t line() const { return line_; }
  std::int64_t column() const { return column_; }

 private:
  std::int64_t line_;
  std::int64_t column_;
};

// No partition fits the memory limits. `missing_bytes` is what the best partition lacks on its fullest stage;
// `smallest_num_stages` is the least number of stages that would fit, 0 if none does.
class InfeasibleError : public Error {
 public:
  InfeasibleError(const std::string& what, std::int64_t missing_bytes, int smallest_num_stages, int stage = 0)
      : Error(what), missing_bytes_(missing_bytes), smallest_num_stages_(smallest_num_stages), stage_(stage) {}
  std::int64_t missing_bytes() const { return missing_bytes_; }
  int smallest_num_stages() const { return smallest_num_stages_; }
  int stage() const { return stage_; }  // that lacks them, in the partition that lacks least

 private:
  std::int64_t missing_bytes_;
  int smallest_num_stages_;
  int stage_;
};

// An allocation, or a transfer, that would take an account past its limit. The account is as it was before.
class OutOfMemoryError : public Error {
 public:
  OutOfMemoryError(const std::string& account, std::int64_t requested_bytes, std::int64_t live_bytes,
                   std::int64_t limit_bytes)
      : Error(account + ": out of memory: " + std::to_string(requested_bytes) + " bytes requested, " +
              std::to_string(live_bytes) + " bytes live, limit " + std::to_string(limit_bytes) +
              " bytes; use more micro-batches, recompute or more stages, or raise the limit"),
        account_(account),
        requested_bytes_(requested_bytes),
        live_bytes_(live_bytes),
        limit_bytes_(limit_bytes) {}
  // The same with more to say about it.
  OutOfMemoryError(const std::string& what, const OutOfMemoryError& error)
      : Error(what),
        account_(error.account_),
        requested_bytes_(error.requested_bytes_),
        live_bytes_(error.live_bytes_),
        limit_bytes_(error.limit_bytes_) {}
  // Its name.
  const std::string& account() const { return account_; }
  std::int64_t requested_bytes() const { return requested_bytes_; }
  std::int64_t live_bytes() const { return live_bytes_; }
  std::int64_t limit_bytes() const { return limit_bytes_; }

 private:
  std::string account_;
  std::int64_t requested_bytes_;
  std::int64_t live_bytes_;
  std::int64_t limit_bytes_;
};

// A call that could never return from where it was made: of a pipeline inside one of its own steps, or in a process
// that was forked from the one that made it. Nothing has run.
class CallError : public Error {
 public:
  using Error::Error;
};

// A file that cannot be read or written, or does not hold what it should: which one, and what to do about it.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& what) : Error(what) {}
  CheckpointError(std::string path, const std::string& what, int error_number = 0)
      : Error(path + what), path_(std::move(path)), error_number_(error_number) {}
  // The one at fault; empty if there is no single one.
  const std::string& path() const { return path_; }
  // The errno that a call ended with; 0 if it is what the file is or holds.
  int error_number() const { return error_number_; }

 private:
  std::string path_;
  int error_number_ = 0;
};

// Variables of the environment that do not make a world: one is missing, or its value cannot be used.
class EnvironmentError : public Error {
 public:
  EnvironmentError(const std::string& what, std::string variable) : Error(what), variable_(std::move(variable)) {}
  // The one at fault.
  const std::string& variable() const { return variable_; }

 private:
  std::string variable_;
};

// A program that a launcher cannot start. Nothing runs any more.
class LaunchError : public Error {
 public:
  // As shells have them.
  enum ExitCode : int { kNotStarted = 125, kNotExecutable = 126, kNotFound = 127 };
  LaunchError(const std::string& what, ExitCode exit_code) : Error(what), exit_code_(exit_code) {}
  ExitCode exit_code() const { return exit_code_; }

 private:
  ExitCode exit_code_;
};

// Ranks that cannot meet: no secret in common, another version, another world, no address or port to meet at.
class HandshakeError : public Error {
 public:
  using Error::Error;
};

// Which rank was lost, and what for.
struct PeerPlace {
  int rank = -1;
  std::string host;      // its name; empty if it never said it
  int stage = -1;        // that it runs
  std::string flow;      // "activation 0 -> 1"; empty if none was in use
  int micro_batch = -1;  // -1 if none, or not known
};

// Another rank died, stopped, fell silent or cannot be reached. Training cannot go on without it.
class PeerError : public Error {
 public:
  // "rank 1 (host beta, stage 1), activation 0 -> 1, micro-batch 3: `what`"
  PeerError(PeerPlace place, const std::string& what)
      : Error(describe(place) + ": " + what), place_(std::move(place)), reason_(what) {}
  const PeerPlace& place() const { return place_; }
  const std::string& reason() const { return reason_; }  // without the place

 private:
  static std::string describe(const PeerPlace& place) {
    std::string text = "rank " + std::to_string(place.rank) + " (";
    if (!place.host.empty()) text += "host " + place.host + ", ";
    text += "stage " + std::to_string(place.stage) + ")";
    if (!place.flow.empty()) text += ", " + place.flow;
    if (place.micro_batch >= 0) text += ", micro-batch " + std::to_string(place.micro_batch);
    return text;
  }

  PeerPlace place_;
  std::string reason_;
};

// What another rank sent is not what this one waits for.
class ProtocolError : public PeerError {
 public:
  using PeerError::PeerError;
};

// Ranks that were started with different models, plans or settings.
class FingerprintError : public Error {
 public:
  FingerprintError(const std::string& what, std::string name, int rank)
      : Error(what), name_(std::move(name)), rank_(rank) {}
  // What differs first, and on which rank it is other than on rank 0.
  const std::string& name() const { return name_; }
  int rank() const { return rank_; }

 private:
  std::string name_;
  int rank_;
};

}  // namespace gpipe
