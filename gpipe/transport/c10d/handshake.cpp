#include "gpipe/transport/c10d/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <chrono>
#include <thread>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

template <typename Message>
std::string bytes_of(const Message& message) {
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

Proof make_proof(const std::string& secret, const std::string& message) {
  Proof proof{};
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), proof.data(), &size);
  if (made == nullptr || size != proof.size()) throw HandshakeError("OpenSSL cannot make an HMAC-SHA256 here");
  return proof;
}

[[noreturn]] void throw_refused(Status status, const Hello& hello, const std::string& where) {
  switch (status) {
    case Status::kOtherSecret:
      throw HandshakeError(
          fmt::format("{} refused rank {}: its secret is another one; GPIPE_SECRET must be the same on all ranks",
                      where, hello.rank));
    case Status::kOtherWorld:
      throw HandshakeError(
          fmt::format("{} refused rank {}: its world is not one of {} ranks, or this is not the rank "
                      "that was asked for; all ranks must be started together, with the same number",
                      where, hello.rank, hello.size));
    case Status::kNotExpected:
      throw HandshakeError(
          fmt::format("{} refused rank {}: somebody else is this rank already; every rank must be started once", where,
                      hello.rank));
    default:
      throw HandshakeError(fmt::format("{} refused rank {} without a reason", where, hello.rank));
  }
}

template <typename Message>
void check_opening(const Message& message, const std::string& where) {
  if (message.magic != kWireMagic) {
    throw HandshakeError(fmt::format(
        "{} is no rank of gpipe: its first bytes are others; is the port (GPIPE_MASTER_PORT) in use by something else?",
        where));
  }
  if (message.version != kWireVersion) {
    throw HandshakeError(
        fmt::format("{} speaks version {} of gpipe's protocol, this rank version {}; use the same gpipe "
                    "on all ranks",
                    where, message.version, kWireVersion));
  }
}

}  // namespace

Nonce make_nonce() {
  Nonce nonce{};
  if (RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) != 1) {
    throw HandshakeError("the system has no random bits to meet other ranks with");
  }
  return nonce;
}

Proof joining_proof(const std::string& secret, const Hello& hello, const Challenge& challenge) {
  return make_proof(secret, "gpipe joins" + bytes_of(hello) + bytes_of(challenge));
}

Proof welcoming_proof(const std::string& secret, const Hello& hello, const Challenge& challenge) {
  return make_proof(secret, "gpipe welcomes" + bytes_of(hello) + bytes_of(challenge));
}

bool is_same(const Proof& a, const Proof& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

bool prove(int socket, const std::string& secret, Hello hello, const std::string& where, Deadline deadline) {
  hello.nonce = make_nonce();
  Challenge challenge;
  if (!write_all(socket, &hello, sizeof hello, deadline)) return false;
  if (!read_all(socket, &challenge, sizeof challenge, deadline)) return false;
  check_opening(challenge, where);
  const Proof proof = joining_proof(secret, hello, challenge);
  Verdict verdict;
  if (!write_all(socket, proof.data(), proof.size(), deadline)) return false;
  if (!read_all(socket, &verdict, sizeof verdict, deadline)) return false;
  check_opening(verdict, where);
  if (verdict.status != Status::kWelcome) throw_refused(verdict.status, hello, where);
  if (!is_same(verdict.proof, welcoming_proof(secret, hello, challenge))) {
    throw HandshakeError(fmt::format(
        "{} cannot prove that it knows the run's secret; GPIPE_SECRET must be the same on all ranks", where));
  }
  return true;
}

FileDescriptor join(const SocketName& place, const std::string& secret, const Hello& hello, Deadline deadline) {
  constexpr std::chrono::milliseconds kPause{20};
  const std::string where = fmt::format("rank {} at {}, port {},", hello.to_rank, place.address, place.port);
  while (std::chrono::steady_clock::now() < deadline) {
    FileDescriptor connection = connect_to(place.address, place.port, deadline);
    if (connection.is_open() && prove(connection.get(), secret, hello, where, deadline)) return connection;
    std::this_thread::sleep_for(kPause);
  }
  return {};
}

}  // namespace gpipe::detail
