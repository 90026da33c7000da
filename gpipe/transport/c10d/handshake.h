// Handshake: how two ranks prove to each other that they know the run's secret, before anything else is said.
//
//   connecting side          listening side
//   Hello      ------------>               who it says it is, and a nonce
//              <------------ Challenge     another nonce
//   Proof      ------------>               HMAC(secret, "gpipe joins" Hello Challenge)
//              <------------ Verdict       welcome, with HMAC(secret, "gpipe welcomes" Hello Challenge), or why not
//
// All four have a fixed size. Before the proof, only magic and version of the hello are looked at. docs/launching.md
// has the layout.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "gpipe/os/file_descriptor.h"
#include "gpipe/transport/c10d/socket.h"

namespace gpipe::detail {

using Nonce = std::array<unsigned char, 32>;  // random, used once
using Proof = std::array<unsigned char, 32>;  // whoever does not know the secret can neither make nor foresee it

constexpr std::uint32_t kWireVersion = 3;
constexpr std::array<char, 8> kWireMagic = {'g', 'p', 'i', 'p', 'e', '-', 'p', '\n'};

// What a connection is for.
enum class Purpose : std::uint32_t { kStore = 0, kPair = 1 };

struct Hello {
  std::array<char, 8> magic = kWireMagic;
  std::uint32_t version = kWireVersion;
  Purpose purpose = Purpose::kStore;
  std::uint32_t rank = 0;     // of the one who says it
  std::uint32_t to_rank = 0;  // whom it wants to talk to
  std::uint32_t size = 0;     // of the world
  std::uint32_t unused = 0;
  Nonce nonce{};
};
static_assert(sizeof(Hello) == 64);

enum class Status : std::uint32_t {
  kWelcome = 0,
  kOtherVersion = 1,
  kOtherSecret = 2,
  kOtherWorld = 3,
  kNotExpected = 4
};

struct Challenge {
  std::array<char, 8> magic = kWireMagic;
  std::uint32_t version = kWireVersion;
  Status status = Status::kWelcome;
  std::array<char, 16> unused{};
  Nonce nonce{};
};
static_assert(sizeof(Challenge) == 64);

struct Verdict {
  std::array<char, 8> magic = kWireMagic;
  std::uint32_t version = kWireVersion;
  Status status = Status::kWelcome;
  std::array<char, 16> unused{};
  Proof proof{};
};
static_assert(sizeof(Verdict) == 64);

// Throws HandshakeError if the system has no random bits.
Nonce make_nonce();
// HMAC-SHA256 of OpenSSL; throw HandshakeError if that has none.
Proof joining_proof(const std::string& secret, const Hello& hello, const Challenge& challenge);
Proof welcoming_proof(const std::string& secret, const Hello& hello, const Challenge& challenge);
// In a time that says nothing about where they differ.
bool is_same(const Proof& a, const Proof& b);

// The connecting side. True: both know the secret. False: the other side has closed, or said nothing until the
// deadline. Throws HandshakeError, which says `where`, if it is something else, of another version, or refuses.
bool prove(int socket, const std::string& secret, Hello hello, const std::string& where, Deadline deadline);

// Connects and proves, again and again until the deadline: the other side may not listen yet, or may be busy with
// others. Throws what `prove` throws. Not open if it is too late.
FileDescriptor join(const SocketName& place, const std::string& secret, const Hello& hello, Deadline deadline);

}  // namespace gpipe::detail
